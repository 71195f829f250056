"""`engine.utils.tensorboard`: tensorboardX writes, given tensors of the engine."""

import sys
from pathlib import Path

import pytest

import engine


def test_a_writer_takes_tensors(tmp_path: Path) -> None:
    tensorboardx = pytest.importorskip("tensorboardX")
    from engine.utils.tensorboard import SummaryWriter

    assert SummaryWriter is tensorboardx.SummaryWriter
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", engine.tensor(0.5, requires_grad=True), 3)
        writer.add_scalar("rate", 0.25, 3)
        writer.add_histogram("weights", engine.arange(8.0), 3)
        writer.add_image("picture", engine.zeros(3, 4, 4), 3)
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()
    assert all(tag in written for tag in (b"loss", b"rate", b"weights", b"picture"))
    assert b"\x00\x00\x00?" in written  # 0.5 as a float32


def test_without_it_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "engine.utils.tensorboard", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'tensorboardX; pip install "allstride\[tensorboard\]"'):
        import engine.utils.tensorboard  # noqa: F401
