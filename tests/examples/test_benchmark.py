"""examples/benchmark.py takes turns, counts and compares as it says; the figures themselves are nobody's test."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.examples.running import ROOT, command, run

# PyTorch as far as the benchmark can tell: the same script, on these packages, under torchrun's name.
PEER = {
    "__init__.py": """
        import sys, types, ddp, engine
        # What comes after its last barrier ends the process at once, which ddprun takes for a failure.
        distributed = types.SimpleNamespace(**vars(ddp) | {"barrier": sys.exit})
        parallel = types.ModuleType("torch.nn.parallel")
        parallel.DistributedDataParallel = ddp.DistributedDataParallel
        sys.modules |= {"torch.nn": engine.nn, "torch.nn.parallel": parallel}
        globals().update({name: getattr(engine, name) for name in
                          ("nn", "optim", "randn", "randint", "arange", "Generator", "manual_seed")})
        compile = lambda module: module
    """,
    "distributed/__init__.py": "from ddp import *",
    "distributed/run.py": """
        import sys
        from launch.__main__ import main
        assert sys.argv[1:3] == ["--standalone", "--nproc-per-node"]
        sys.exit(main(["-n", *sys.argv[3:]]))
    """,
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/figures.py, which is part of no package."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("figures")


def lines_of(*words: str, **variables: str) -> list[dict[str, Any]]:
    done = run(command(1, "examples/benchmark.py", *words), **variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_model_trains() -> None:
    """All workloads in one process: their number of parameters, and a time above 0."""
    done = run(command(1, "benchmarks/training.py", "--warmup=0", "--steps=1", *SIZES))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["workload"]: line["params_M"] for line in lines} == SIZES
    assert all(line["step_ms"] > 0 and line["peak_MB"] > 0 for line in lines)


def test_what_the_wrapper_costs() -> None:
    """benchmarks/ddp_cost.py on two ranks: its shares are those of its own times, of one turn."""
    done = run(command(2, "benchmarks/ddp_cost.py", "tiny", "--turns=1"))
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout)
    plain = sum(line["plain_ms"]) / 2
    assert len(line["plain_ms"]) == line["ranks"] == 2
    assert line["beyond_lock_step"] == pytest.approx(line["ddp_ms"] / line["lock_step_ms"] - 1, abs=1e-2)
    assert line["cost"] == pytest.approx(line["ddp_ms"] / plain - 1, abs=1e-2)
    assert 0 <= line["waited_ms"] < line["ddp_ms"]
    assert line["work"] == pytest.approx((line["ddp_ms"] - line["waited_ms"]) / plain - 1, abs=1e-2)
    assert line["cost_in_backward"] == pytest.approx(line["in_backward_ms"] / plain - 1, abs=1e-2)


SIZES = {
    "mlp": 1.864,
    "cnn": 0.422,
    "gpt": 0.876,
    "tiny": 0.002,
    "traffic": 10.598,
    "wide": 20.038,
    "deep": 1.636,
    "batch_norm": 0.113,
    "recurrent": 0.859,
    "long": 0.99,
    "gpt_256": 3.324,
    "adamw_16.8M": 16.777,
    "adamw_1.8M_in_18": 1.8,
}


@pytest.fixture
def peer(tmp_path: Path) -> dict[str, str]:
    """The variables of an environment that has it."""
    for name, text in PEER.items():
        path = tmp_path / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[8:] if line.startswith(" ") else line for line in text.splitlines()))
    return {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"}


def test_both_sides_in_turn(peer: dict[str, str]) -> None:
    """The short form with a peer: which processes run in which order, and what becomes of their lines."""
    lines = lines_of("tiny", "start", "--short", "--json", "--torch-python", sys.executable, **peer)
    processes, found = [line for line in lines if "round" in line], [line for line in lines if "figure" in line]
    assert [(line["workload"], line.get("ranks"), line.get("captured"), line["library"]) for line in processes] == [
        ("tiny", 1, False, "engine"),
        ("tiny", 1, False, "torch"),
        ("tiny", 1, True, "engine"),
        ("tiny", 2, False, "engine"),
        ("tiny", 2, False, "torch"),
        ("tiny", 2, True, "engine"),
        ("tiny", 1, False, "engine"),
        ("tiny", 1, False, "torch"),
        ("start", None, None, "engine"),
        ("start", None, None, "torch"),
    ]
    assert lines == processes + found
    alone = [line["figure"] for line in found if "torch" not in line]
    assert alone == ["`tiny` step, 1 rank, plain / captured", "start to first step, no kernel compiled yet, s"]
    for line in found:
        assert line["own"] > 0
        assert "ratio" not in line or line["ratio"] == pytest.approx(line["own"] / line["torch"], rel=0.01)


def test_both_compilers_in_turn(peer: dict[str, str]) -> None:
    words = ["tiny", "adamw", "start", "--compile", "--short", "--json", "--torch-python", sys.executable]
    lines = lines_of(*words, **peer)
    processes, found = [line for line in lines if "round" in line], [line for line in lines if "figure" in line]
    runs = [(line["workload"], line["ranks"], line["captured"], line["library"]) for line in processes]
    assert runs == [("tiny", ranks, True, library) for ranks in (1, 2) for library in ("engine", "torch")]
    assert [line["figure"] for line in found] == ["`tiny` samples/s, 2 ranks", "`tiny` step, 1 rank, ms"]
    assert all(line["ratio"] == pytest.approx(line["own"] / line["torch"], rel=0.01) for line in found)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_one_side_is_measured(tmp_path: Path) -> None:
    """The table is printed and written between the marks of a file, the rest of which stays."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    done = run(command(1, "examples/benchmark.py", "tiny", "--short", "--write", page))
    assert done.returncode == 0, done.stderr
    assert "one side only" in done.stderr
    assert "| `tiny` samples/s, 2 ranks |" in done.stdout
    before, table, after = page.read_text().partition(done.stdout)
    assert (before, after) == ("before\n<!-- figures: begin -->\n", "<!-- figures: end -->\nafter\n")
    assert table


def test_under_the_launcher_it_is_one_of_the_ranks() -> None:
    done = run(command(2, "-m", "examples.benchmark", "tiny", "--steps=3"))
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (line["workload"], line["ranks"], line["library"]) == ("tiny", 2, "engine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnn"], "unknown workload 'rnn': choose from mlp, cnn, gpt, tiny, traffic,"),
        (["start", "--compile"], "--compile is about models: name one"),
        (["--rounds=0"], "expected 1 round and 2 ranks or more, got 0 and 2"),
    ],
)
def test_misuse_is_refused(words: list[str], message: str) -> None:
    done = run(command(1, "examples/benchmark.py", *words))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_side_that_fails_ends_the_benchmark_with_its_errors(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('a broken installation')")
    words = ["tiny", "--short", "--torch-python", sys.executable]
    done = run(command(1, "examples/benchmark.py", *words), PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.returncode == 1
    assert re.search(r"torch: .*training\.py tiny .* ended with 1:", done.stderr)
    assert "a broken installation" in done.stderr


def rounds(*samples: tuple[float, float]) -> list[dict[Any, dict[str, Any]]]:
    """Rounds of `mlp` with these samples/s on one rank and on two."""
    return [
        {
            ("mlp", 1, 1): {"samples_s": one, "step_ms": 128e3 / one},
            ("mlp", 2, 1): {"samples_s": two, "peak_MB": 200.0},
            ("mlp", 1, 4): {"samples_s": 3 * one},
            ("mlp, captured", 1, 1): {"step_ms": 100e3 / one},
            ("mlp, captured", 2, 1): {"samples_s": two + 50},
        }
        for one, two in samples
    ]


def test_ratios_are_those_of_a_round(figures: ModuleType) -> None:
    """A machine that is half as fast in one round changes no ratio."""
    own, peer = rounds((1000, 1900), (500, 900), (1000, 1850)), rounds((800, 1000), (400, 500), (800, 1000))
    found = {line.what: line for line in figures.figures(own, peer, ["mlp"], 2, 4)}
    throughput = found["`mlp` samples/s, 2 ranks"]
    assert throughput.as_json() == {
        "figure": "`mlp` samples/s, 2 ranks",
        "own": 1850,
        "own_range": [900, 1900],
        "torch": 1000,
        "torch_range": [500, 1000],
        "ratio": 1.85,
        "ratio_range": [1.8, 1.9],
        "to_reach": "≥ 1.5x",
        "reached": True,
    }
    cells = "1,850 (900 … 1,900) | 1,000 (500 … 1,000) | 1.85 (1.8 … 1.9) | ≥ 1.5x | yes"
    stated, others = figures.table(list(found.values())).split("\n\n")
    assert f"\n| `mlp` samples/s, 2 ranks | {cells} |\n" in stated
    assert "\n| `mlp` samples/s, one process, 4 threads | 3,000 (1,500 … 3,000) | 2,400 (1,200 … 2,400) |" in others
    scaling = found["`mlp` scaling, 1 to 2 ranks"]
    assert scaling.own == [0.95, 0.9, 0.925]
    assert (scaling.target(), scaling.reached()) == ("≥ 0.95", False)
    assert found["`mlp` samples/s, 2 ranks, captured"].ratios() == [1.95, 1.9, 1.9]
    assert found["`mlp` peak memory a rank, MB"].reached()
    assert found["`mlp` samples/s, one process, 4 threads"].reached() is None


def test_optimizer_steps_have_figures_of_their_own(figures: ModuleType) -> None:
    own, peer = ({(name, 1, 1): {"step_ms": time} for name in figures.OPTIMIZER} for time in (2.0, 1.9))
    found = list(figures.figures([own], [peer], [*figures.OPTIMIZER], 2, 4))
    assert [(line.target(), line.reached()) for line in found] == [("≤ 1.1x", True), ("≤ 1x", False)]


def test_a_ratio_that_must_not_be_exceeded(figures: ModuleType) -> None:
    for own, reached in ((1.1, True), (1.2, False)):
        assert figures.Figure("time", [own], [1.0], at_most=1.1).reached() is reached
    alone = figures.Figure("time", [1.0], [], at_most=1.1)
    assert (alone.ratios(), alone.reached(), alone.target()) == ([], None, "≤ 1.1x")


def test_a_file_without_marks_is_left_alone(figures: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: end -->")
    with pytest.raises(ValueError, match="expected the lines"):
        figures.write(page, "figures", "table")
    assert page.read_text() == "<!-- figures: end -->"
