"""Damaged and hostile files end in one clear error: a sample of tests/campaigns/damaged_files.py, and its grounds."""

import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as save_foreign

import engine
from tests.campaigns import damaged_files

ROOT = Path(__file__).resolve().parents[3]


def test_a_sample_of_the_campaign() -> None:
    """In a process of its own, since its memory is limited."""
    command = [sys.executable, "-m", "tests.campaigns.damaged_files", "--mutations", "1000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 kinds of wrong outcome" in ended.stdout


def test_the_campaign_notices() -> None:
    whole = damaged_files.saved([1])
    assert damaged_files.outcome(damaged_files.read_file, whole, [1]) == "equal"
    assert damaged_files.outcome(damaged_files.read_file, whole, [2]) == "other content: [1]"
    assert damaged_files.outcome(lambda content: 1 / 0, whole, [1]) == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("value", [{"w": engine.ones(100)}, {"w": engine.ones(3), "epoch": 1}])
def test_a_flipped_bit_is_found_wherever_it_is(value: object) -> None:
    whole = damaged_files.saved(value)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(RuntimeError, match="is no complete checkpoint"):
            engine.load(io.BytesIO(damaged))


def test_a_changed_tensor_is_named() -> None:
    whole = damaged_files.saved({"first": engine.ones(4), "second": engine.ones(4)})
    with pytest.raises(RuntimeError, match="the checksum of tensor 'second' does not match"):
        engine.load(io.BytesIO(whole[:-1] + b"\x00"))


def test_files_of_others_are_taken_and_refused_as_their_own_reader_does() -> None:
    whole = save_foreign({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False])})
    taken = 0
    for name, damaged in damaged_files.mutations(whole, 500, 3):
        try:
            deserialize(damaged)
        except SafetensorError:
            with pytest.raises(RuntimeError, match=r"is no complete checkpoint|is a bare pickle"):
                engine.load(io.BytesIO(damaged))
            continue
        result = damaged_files.outcome(damaged_files.read_file, damaged, None)
        assert result == "refused" or result.startswith("other content: {"), name
        taken += result != "refused"
    assert taken


def test_a_crafted_pickle_patches_no_class() -> None:
    for name, content in damaged_files.crafted_pickles():
        before = dict(vars(engine.Tensor)), dict(vars(engine.rules.dtypes.dtype))
        if name != "a frame without an end":
            with pytest.raises((RuntimeError, pickle.UnpicklingError)):
                damaged_files.read_pickle(content)
        assert (dict(vars(engine.Tensor)), dict(vars(engine.rules.dtypes.dtype))) == before


_MEASURE = """
import resource, sys
import engine
count, size, path = 4, 1 << 24, sys.argv[1]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
def now():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
engine.save(engine.load(path), path)  # everything is imported and warm
content = {str(i): engine.ones(8, size // 32).t() for i in range(count)}
before = peak()
engine.save(content, path)
saving = peak() - before
del content
before, held = now(), peak()
loaded = engine.load(path)
print(saving, max(peak() - held, 0), now() - before)
"""


def test_memory_is_the_content_and_one_tensor(tmp_path: Path) -> None:
    """Each tensor, of 16 MiB, is laid out anew for the file, and again when it is read."""
    path = tmp_path / "warm"
    engine.save({"w": engine.ones(2, 2).t()}, path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    saving, above_content, kept = map(int, ended.stdout.split())
    slack = 6 << 20
    assert saving <= (16 << 20) + slack
    assert above_content <= (16 << 20) + slack
    assert kept <= (64 << 20) + slack
