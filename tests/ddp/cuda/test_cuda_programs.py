"""Programs on GPUs as a user runs them: the examples learn what they learn on the CPU, the benchmark measures."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.memory import backend
from tests import cuda_device
from tests.examples.running import run, summary

FEW_DIGITS = """
import runpy, sys
sys.path.insert(0, "examples")
import digits
import engine
whole = digits.load_data
def few():
    train, test = whole()
    cut = lambda data, count: type(data)(*(tensor[:count].clone() for tensor in data.tensors))
    return cut(train, 32), cut(test, 10)
digits.load_data = few
digits.main()
"""


@pytest.fixture(scope="module")
def runner() -> list[str]:
    """What stands before a script on a machine without a GPU."""
    return cuda_device.runner()


def launch(ranks: int, *words: object) -> list[str]:
    return [sys.executable, *(["-m", "launch", "-n", str(ranks)] if ranks > 1 else []), *map(str, words)]


def test_the_digits_are_learnt_as_on_the_cpu(runner: list[str], tmp_path: Path) -> None:
    script = tmp_path / "few_digits.py"
    script.write_text(FEW_DIGITS)
    options = ["--epochs", 1, "--batch-size", 16, "--out", tmp_path]
    host = summary(run(launch(1, script, *options)))
    there = summary(run(launch(2, *runner, script, *options, "--device", "cuda"), CUDA_VISIBLE_DEVICES="0"))
    assert there["world_size"] == 2
    assert there["train_loss"] == pytest.approx(host["train_loss"], rel=1e-3)
    assert there["test_accuracy"] == pytest.approx(host["test_accuracy"], abs=0.11)


def test_a_small_gpt_learns_as_on_the_cpu(runner: list[str], tmp_path: Path) -> None:
    options: list[Any] = ["--steps", 3, "--layers", 1, "--width", 32, "--context", 8, "--batch-size", 4]
    options += ["--sample", 2, "--out", tmp_path, "--accumulate", 2]
    script = "examples/gpt_stdlib.py"
    host = summary(run(launch(1, script, *options)))
    there = summary(run(launch(2, *runner, script, *options, "--device", "cuda"), CUDA_VISIBLE_DEVICES="0"))
    assert there["val_bits_per_byte"] == pytest.approx(host["val_bits_per_byte"], rel=1e-3)


def test_the_benchmark_measures_device_transports_beside_a_copy(runner: list[str], tmp_path: Path) -> None:
    program = tmp_path / "bench.py"
    program.write_text("from ddp.bench import sums\nsums._SECONDS, sums._ROUNDS = 0.01, (2, 3)\nsums.main()\n")
    words = launch(2, *runner, program, "--device", "cuda", "--json", "--max-bytes", "4K")
    done = run(words, CUDA_VISIBLE_DEVICES="0", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(figure["transport"], figure["bytes"]) for figure in figures}
    for name in ("cuda_ipc", "staged", "device_copy"):
        assert {(name, size) for size in (1024, 4096)} <= found
    for figure in figures:
        assert figure["seconds"] > 0
        assert ("memory_GBps" in figure) == (figure["transport"] in ("cuda_ipc", "device_copy"))
    assert "not measured: transport nccl: " in done.stderr


def test_the_figures_of_a_gpu_are_measured_from_end_to_end(runner: list[str]) -> None:
    """At the smallest sizes: what they are says nothing."""
    words = ["benchmarks/gpu.py", "--toy", "--only", "gpt_large", "adamw", "ipc"]
    done = run(launch(1, *words, *(["--runner", runner[0]] if runner else [])))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    steps = {(line["workload"], line["mode"]): line for line in lines if line["figure"] == "step"}
    assert set(steps) == {("gpt_large", "eager"), ("gpt_large", "captured")}
    for line in steps.values():
        assert line["ms"] > 0
        assert line["device"]
    (adamw,) = [line for line in lines if line["figure"] == "adamw"]
    (copied,) = [line for line in lines if line["figure"] == "copy"]
    assert adamw["bytes"] == 28 * adamw["parameters"]
    ratios = [line for line in lines if line["figure"] == "ratio"]
    assert ratios[0]["of_copy"] == pytest.approx(adamw["memory_GBps"] / copied["memory_GBps"], rel=0.1, abs=1e-3)
    assert len([line for line in ratios if "ipc" in line]) == 2
    assert {line["figure"] for line in lines} == {"step", "copy", "adamw", "ipc", "ratio"}


def test_figures_of_both_libraries_are_set_beside_each_other() -> None:
    ratios = runpy.run_path("benchmarks/gpu.py")["ratios"]
    steps = {("engine", "eager"): 3.0, ("engine", "captured"): 1.0, ("torch", "eager"): 4.0, ("torch", "compiled"): 2.0}
    lines = [
        {"figure": "step", "workload": "mlp", "library": library, "mode": mode, "ms": ms}
        for (library, mode), ms in steps.items()
    ]
    found = {(line["engine"], line["torch"]): line for line in ratios(lines)}
    assert {pair: line["ratio"] for pair, line in found.items()} == {
        ("eager", "eager"): 0.75,
        ("eager", "compiled"): 1.5,
        ("captured", "eager"): 0.25,
        ("captured", "compiled"): 0.5,
    }
    assert [pair for pair, line in found.items() if "at_most" in line] == [("captured", "eager")]


@pytest.mark.skipif(cuda_device.real(), reason="there is one")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    done = run(launch(1, "benchmarks/gpu.py"))
    assert done.returncode == 2
    with pytest.raises(RuntimeError) as missing:
        backend.require_cupy()
    assert done.stderr == f"benchmarks/gpu.py: {missing.value}\n"
    assert done.stdout == ""


def test_host_time_is_measured_beside_cupys(
    cuda: engine.device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_host_time.py", "--json", "--toy"])
    assert runpy.run_path("benchmarks/gpu_host_time.py")["main"]() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"x + y", "x @ w", "linear", "softmax", "layer_norm", "gelu", "attention", "adamw of 48", "step"} <= {
        line["op"] for line in lines
    }
    assert all(set(line) == {"op", "ours_us", "cupy_us", "ratio"} and line["ratio"] > 0 for line in lines)
