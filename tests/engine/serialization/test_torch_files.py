"""Files of torch.save: what is read, what is refused, and that PyTorch reads what is written."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from tests.campaigns import damaged_files

ROOT = Path(__file__).resolve().parents[3]
SAVED = ROOT / "tests/data/torch_saved.pt"  # by PyTorch 2.13: tests/data/torch_saved.py


def records(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    file.seek(0)
    return file


def changed(change: Callable[[dict[str, bytes]], None], content: Any) -> io.BytesIO:
    file = io.BytesIO()
    engine.save(content, file, format="torch")
    parts = records(file.getvalue())
    change(parts)
    return archive_of(parts)


def check_content(read: dict[str, Any]) -> None:
    """That it is what tests/data/torch_saved.py has saved."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    model.load_state_dict(read["model"])
    assert model[0].weight.flatten().tolist() == [0.5 - np.float32(0.1)] * 18
    assert read["model"]["0.weight"].stride() == (9, 1, 3, 1)
    assert read["model"]._metadata["1"] == {"version": 2}
    optimizer = engine.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer.load_state_dict(read["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.state[model[0].bias]["momentum_buffer"].tolist() == [1.0, 1.0]
    assert type(read["parameter"]) is nn.Parameter
    assert not read["parameter"].requires_grad
    assert read["leaf"].requires_grad
    assert read["leaf"].is_leaf
    part, transposed, base = read["views"]
    assert (part.storage_offset(), transposed.stride()) == (2, (1, 6))
    base[2] = 99.0
    assert part[0] == transposed[2, 0] == 99.0
    base[2] = 2.0
    assert (read["expanded"].shape, read["expanded"].stride()) == ((5,), (0,))
    assert [each.dtype.name for each in read["kinds"]] == list(engine.rules.dtypes.DTYPES)
    assert all(each.tolist() == [1, 0] for each in read["kinds"])
    assert (read["scalar"].item(), read["scalar"].shape, read["empty"].shape) == (3, (), (0, 3))
    plain = [b"\x00\xff", bytearray(b"ab"), {1, 2}, 1 + 2j, 1 << 70, "é", 0.1, True, None, (1, (2, (3,)))]
    assert read["plain"] == plain
    assert [type(each) for each in read["plain"]] == [type(each) for each in plain]
    assert read["own"] == [engine.Size([1, 2]), engine.float16, engine.device("cpu")]
    assert read["ordered"] == OrderedDict(b=1, a=2)
    assert type(read["scheduler"]["milestones"]) is Counter
    assert read["scheduler"]["milestones"] == {3: 1, 5: 2}


def test_a_file_of_pytorch() -> None:
    read = engine.load(SAVED)
    check_content(read)
    assert read["marked"].note == "by hand"
    check_content(engine.load(SAVED, weights_only=False))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    engine.save(engine.load(SAVED), tmp_path / "again.pt", format="torch")
    check_content(engine.load(tmp_path / "again.pt"))
    with zipfile.ZipFile(tmp_path / "again.pt") as archive:
        assert archive.testzip() is None
        names = {entry.filename.partition("/")[2] for entry in archive.infolist()}
    assert {"data.pkl", "version", "byteorder", "data/0"} <= names


def test_pytorch_reads_what_is_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    engine.save(engine.load(SAVED), tmp_path / "again.pt", format="torch")
    ours, theirs = (torch.load(path, weights_only=True) for path in (tmp_path / "again.pt", SAVED))
    assert str(ours) == str(theirs)
    assert ours["model"]["0.weight"].stride() == theirs["model"]["0.weight"].stride()
    assert ours["views"][0].untyped_storage().data_ptr() == ours["views"][2].untyped_storage().data_ptr()


def test_memory_seen_as_two_dtypes_is_written_twice() -> None:
    array = np.arange(6, dtype=np.int32)
    whole, part = engine.from_numpy(array), engine.from_numpy(array.view(np.uint8)[3:9])
    file = io.BytesIO()
    engine.save([whole, part], file, format="torch")
    file.seek(0)
    first, second = engine.load(file)
    assert first.tolist() == list(range(6))
    assert second.tolist() == part.tolist()


def test_a_file_of_the_other_byte_order() -> None:
    def swap(parts: dict[str, bytes]) -> None:
        parts["archive/byteorder"] = b"big" if sys.byteorder == "little" else b"little"
        parts["archive/data/0"] = np.frombuffer(parts["archive/data/0"], np.float32).byteswap().tobytes()
        parts["archive/data/1"] = np.frombuffer(parts["archive/data/1"], np.float64).byteswap().tobytes()

    content = [engine.tensor([1.5, -2.0]), engine.tensor([1 + 2j], dtype=engine.complex128)]
    read = engine.load(changed(swap, content))
    assert [each.tolist() for each in read] == [each.tolist() for each in content]


def test_where_storages_go() -> None:
    seen = []
    read = engine.load(SAVED, map_location=lambda storage, where: seen.append(where) or storage)
    check_content(read)
    assert set(seen) == {"cpu"}
    assert engine.load(SAVED, map_location="meta")["leaf"].device.type == "meta"


@pytest.mark.parametrize("value", [nn.Linear(1, 1), np.ones(2), np.float64(1.0), object(), {"a": [len]}])
def test_what_pytorch_could_not_read_is_not_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="format='torch' takes tensors and plain data"):
        engine.save(value, tmp_path / "x.pt", format="torch")
    assert not os.listdir(tmp_path)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="expected format='safetensors' or 'torch', got 'zip'"):
        engine.save(1, io.BytesIO(), format="zip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts.pop("archive/data/0"), "no record 'data/0'"),
        (lambda parts: parts.pop("archive/data.pkl"), "no record 'data.pkl'"),
        (lambda parts: parts.update({"archive/data/0": bytes(12)}), "does not hold 2 elements"),
        (lambda parts: parts.update({"archive/byteorder": b"middle"}), "neither little nor big"),
        (lambda parts: parts.update({"archive/constants.pkl": b""}), "is a program of TorchScript"),
        (lambda parts: parts.update({"other/data.pkl": b"N."}), "two of its records have one name"),
    ],
)
def test_a_damaged_archive_says_what_is_wrong(change: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        engine.load(changed(change, {"w": engine.ones(2)}))


def test_a_bomb_is_not_unpacked() -> None:
    parts = records(SAVED.read_bytes())
    with pytest.raises(RuntimeError, match="is compressed or encrypted"):
        engine.load(archive_of({"a/data.pkl": parts["torch_saved/data.pkl"] * 1000}, zipfile.ZIP_DEFLATED))


def test_foreign_pickles_are_named() -> None:
    older = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e\x80\x02"
    for content, message in ((older, "PyTorch before 1.6"), (pickle.dumps({"a": 1}), "is a bare pickle")):
        with pytest.raises(RuntimeError, match=message):
            engine.load(io.BytesIO(content))


def test_a_class_without_counterpart_is_named() -> None:
    text = b"ctorch.nn.modules.linear\nLinear\n."
    for weights_only in (True, False):
        with pytest.raises(pickle.UnpicklingError, match=r"holds torch\.nn\.modules\.linear\.Linear, which has no"):
            engine.load(archive_of({"a/data.pkl": text}), weights_only=weights_only)
    with pytest.raises(pickle.UnpicklingError, match=r"holds os\.system, and building it can run any code"):
        engine.load(archive_of({"a/data.pkl": b"cos\nsystem\n."}))


def test_hostile_pickles_change_nothing() -> None:
    before = dict(vars(engine.Tensor)), dict(vars(nn.Parameter))
    for name, text in damaged_files.crafted_torch_pickles():
        with pytest.raises((RuntimeError, pickle.UnpicklingError)):
            damaged_files.read_file(damaged_files.torch_file(text))
        assert (dict(vars(engine.Tensor)), dict(vars(nn.Parameter))) == before, name


_MEASURE = """
import resource, sys
import engine
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
def now():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
engine.save(engine.load(sys.argv[1]), sys.argv[2], format="torch")  # everything is imported and warm
content = {str(i): engine.ones(8, 1 << 19).t() for i in range(4)}
before = peak()
engine.save(content, sys.argv[2], format="torch")
saving = peak() - before
del content
before, held = now(), peak()
loaded = engine.load(sys.argv[2])
above = max(peak() - held, 0)
del loaded
print(saving, above, now() - before)
"""


def test_memory_is_the_file_once(tmp_path: Path) -> None:
    """64 MiB in four tensors; freed memory goes to the next tensors or to the system."""
    command = [sys.executable, "-c", _MEASURE, str(SAVED), str(tmp_path / "x.pt")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    saving, above, kept = map(int, ended.stdout.split())
    slack = 6 << 20
    assert saving <= slack
    assert above <= slack  # as much as the content that was there when it was saved
    assert kept <= (64 << 20) + slack
