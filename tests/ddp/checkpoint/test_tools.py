"""The command line: list, verify, compare, make one file; and readers that know nothing of this package."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine
from ddp import checkpoint
from ddp.checkpoint.__main__ import main
from ddp.testing import run_ranks

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "checkpoints.md"


def state(offset: float = 0.0) -> dict[str, Any]:
    weight = engine.arange(1 << 20, dtype=engine.float32) + offset
    return {
        "model": {"weight": weight, "image": weight[:48].reshape(1, 3, 4, 4).to(memory_format=engine.channels_last)},
        "half": weight[:6].bfloat16(),
        "wave": engine.tensor([1 + 2j, 3 - 1j], dtype=engine.complex128),
        "mask": engine.tensor([True, False]),
        "array": np.arange(3),
        "step": 7,
        "empty": engine.zeros(0, 3),
    }


@pytest.fixture
def written(tmp_path) -> Path:
    folder = tmp_path / "a"
    run_ranks(3, lambda: checkpoint.save(state(), folder / "step-00000007"))
    run_ranks(2, lambda: checkpoint.save(state(), folder / "step-00000008"))
    return folder


def test_list(written, capsys) -> None:
    (written / "step-00000009").mkdir()
    assert main(["ls", str(written)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\s+", " ", line.replace(",", "")) for line in lines] == [
        re.sub(r"\s+", " ", line)
        for line in (
            f"step-00000007 step - 3 ranks {size(written / 'step-00000007')} bytes complete",
            f"step-00000008 step - 2 ranks {size(written / 'step-00000008')} bytes complete",
            "step-00000009 step - - ranks - bytes not complete",
        )
    ]
    assert main(["ls", str(written / "nowhere")]) == 1
    assert "there is no directory" in capsys.readouterr().err
    for command in ("ls", "verify"):
        assert main([command, str(written.parent)]) == 1
        assert f"there is no checkpoint in {written.parent}" in capsys.readouterr().err


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_verify(written, capsys) -> None:
    """Every byte: one that was changed anywhere is found, and its file named."""
    assert main(["verify", str(written)]) == 0
    steps = [written / f"step-0000000{step}" for step in (7, 8)]
    assert capsys.readouterr().out.splitlines() == [f"{path} is whole" for path in steps]
    assert main(["verify", str(steps[0])]) == 0
    assert capsys.readouterr().out == f"{steps[0]} is whole\n"
    for name in ("manifest.json", "00000.safetensors", "00001.safetensors"):
        path = written / "step-00000008" / name
        content = path.read_bytes()
        for place in (9, 100, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert main(["verify", str(written)]) == 1, (name, place)
            assert f"step-00000008/{name}" in capsys.readouterr().out
        for cut in (0, 5, len(content) - 1):
            path.write_bytes(content[:cut])
            assert main(["verify", str(written)]) == 1
            assert f"step-00000008/{name}" in capsys.readouterr().out
        path.write_bytes(content)
    (written / "step-00000009").mkdir()
    assert main(["verify", str(written)]) == 1
    assert "did not come to the end" in capsys.readouterr().out


def test_consolidate(written, tmp_path) -> None:
    """One file: what was saved, strides included."""
    assert main(["consolidate", str(written), str(tmp_path / "one.safetensors")]) == 0
    loaded, expected = engine.load(tmp_path / "one.safetensors"), state()
    assert list(loaded) == list(expected)
    assert loaded["model"]["image"].stride() == expected["model"]["image"].stride()
    assert loaded["step"] == 7
    assert loaded["array"].tolist() == [0, 1, 2]
    for key in ("half", "wave", "mask", "empty"):
        assert loaded[key].dtype is expected[key].dtype
        assert engine.equal(loaded[key], expected[key])
    for name, tensor in expected["model"].items():
        assert engine.equal(loaded["model"][name], tensor)


def test_diff(written, tmp_path, capsys) -> None:
    """By values, whichever number of ranks wrote them."""
    assert main(["diff", str(written / "step-00000007"), str(written / "step-00000008")]) == 0
    other = state(0.5) | {"step": 8, "more": 1}
    del other["mask"]
    checkpoint.save(other, tmp_path / "b")
    assert main(["diff", str(written), str(tmp_path / "b")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "model.weight: 1048576 of 1048576 elements differ, by 0.5 at most" in lines
    assert "step: 7 and 8" in lines
    assert f"mask: only in {written / 'step-00000008'}" in lines
    assert f"more: only in {tmp_path / 'b'}" in lines


def test_the_documented_reader_needs_safetensors_only(written) -> None:
    """A function of ten lines, as it stands in the guide."""
    (text,) = re.findall(r"```python\n(# Reads a checkpoint.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len([line for line in text.splitlines() if line.startswith("    ")]) <= 10
    assert not re.search(r"\b(ddp|engine)\b", text)
    names: dict[str, Any] = {}
    exec(text, names)
    tensors = names["read"](written / "step-00000007")
    expected = state()
    assert np.array_equal(tensors["model.weight"], expected["model"]["weight"].numpy())
    assert np.array_equal(tensors["model.image"], expected["model"]["image"].numpy())
    assert tensors["model.image"].strides == tuple(4 * step for step in expected["model"]["image"].stride())
    assert np.array_equal(tensors["half"].astype(np.float32), expected["half"].float().numpy())
    assert tensors["wave"].tolist() == [1 + 2j, 3 - 1j]
    assert tensors["empty"].shape == (0, 3)


def test_files_are_plain_safetensors(written) -> None:
    from safetensors.numpy import load_file

    manifest = json.loads((written / "step-00000007" / "manifest.json").read_text())
    keys = {key for name in manifest["files"] for key in load_file(written / "step-00000007" / name)}
    assert {"mask", "half", "model.image"} < keys
    assert len([key for key in keys if key.startswith("model.weight[")]) == 3
