"""Programs on GPUs as a user runs them: the examples learn what they learn on the CPU, the benchmark measures."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine import backend
from tests.examples.running import run, summary

RUNNER = "tests/ddp/cuda/on_simulator.py"

FEW_DIGITS = """
import runpy, sys
sys.path.insert(0, "examples")
import digits
import engine
whole = digits.load_data
def few():
    train, test = whole()
    cut = lambda data, count: type(data)(*(tensor[:count].clone() for tensor in data.tensors))
    return cut(train, 96), cut(test, 30)
digits.load_data = few
digits.main()
"""


@pytest.fixture(scope="module")
def runner() -> list[str]:
    """What stands before a script on a machine without a GPU."""
    try:
        backend.require_cupy()
    except RuntimeError:
        return [RUNNER]
    return []


def launch(ranks: int, *words: object) -> list[str]:
    import sys

    return [sys.executable, *(["-m", "launch", "-n", str(ranks)] if ranks > 1 else []), *map(str, words)]


def test_the_digits_are_learnt_as_on_the_cpu(runner: list[str], tmp_path: Path) -> None:
    script = tmp_path / "few_digits.py"
    script.write_text(FEW_DIGITS)
    options = ["--epochs", 2, "--out", tmp_path]
    host = summary(run(launch(1, script, *options)))
    for ranks in (1, 2):
        there = summary(run(launch(ranks, *runner, script, *options, "--device", "cuda"), CUDA_VISIBLE_DEVICES="0"))
        assert there["world_size"] == ranks
        assert there["train_loss"] == pytest.approx(host["train_loss"], rel=1e-3)
        assert there["test_accuracy"] == pytest.approx(host["test_accuracy"], abs=0.04)


def test_a_small_gpt_learns_as_on_the_cpu(runner: list[str], tmp_path: Path) -> None:
    options: list[Any] = ["--steps", 3, "--layers", 1, "--width", 32, "--context", 8, "--batch-size", 4]
    options += ["--sample", 2, "--out", tmp_path, "--accumulate", 2]
    script = "examples/gpt_stdlib.py"
    host = summary(run(launch(1, script, *options)))
    there = summary(run(launch(2, *runner, script, *options, "--device", "cuda"), CUDA_VISIBLE_DEVICES="0"))
    assert there["val_bits_per_byte"] == pytest.approx(host["val_bits_per_byte"], rel=1e-3)


def test_the_benchmark_measures_device_transports_beside_a_copy(runner: list[str], tmp_path: Path) -> None:
    program = tmp_path / "bench.py"
    program.write_text("import ddp.bench\nddp.bench._SECONDS, ddp.bench._ROUNDS = 0.01, (2, 3)\nddp.bench.main()\n")
    words = launch(2, *runner, program, "--device", "cuda", "--json", "--max-bytes", "4K")
    done = run(words, CUDA_VISIBLE_DEVICES="0", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(figure["transport"], figure["bytes"], figure["in_place"]) for figure in figures}
    for name in ("cuda_ipc", "staged", "device_copy"):
        assert {(name, size, in_place) for size in (1024, 4096) for in_place in (True, False)} <= found
    for figure in figures:
        assert figure["seconds"] > 0
        assert ("memory_GBps" in figure) == (figure["transport"] in ("cuda_ipc", "device_copy"))
    assert "not measured: transport nccl: " in done.stderr
