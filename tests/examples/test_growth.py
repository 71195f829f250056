"""benchmarks/growth.py: its lines, its exponents, its picture and its table; how time grows is nobody's test."""

import json
from pathlib import Path

import pytest

from tests.examples.running import ROOT, command, run


@pytest.mark.full
def test_a_sweep_is_measured_drawn_and_written(tmp_path: Path) -> None:
    """Two points of two sweeps; a peer with the same text stands beside each."""
    page = tmp_path / "page.md"
    page.write_text("<!-- growth: begin --><!-- growth: end -->")
    words = ["batch", "depth", "--points=2", "--plot", tmp_path / "plot.png", "--write", page]
    done = run(command(1, "benchmarks/growth.py", *words))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["sweep"], line.get("size")) for line in lines] == [
        ("batch", 8),
        ("batch", 16),
        ("batch", None),
        ("depth", 2),
        ("depth", 5),
        ("depth", None),
    ]
    assert {line["library"] for line in lines} == {"engine"}
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    assert page.read_text().count("\n| ") == 3  # the heading, two sweeps


def test_arithmetic_of_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations counted by hand, and the number of parameters that the largest cases have."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import growth

    case = growth.dense([3, 5, 2], batch=7)
    products = 2 * 7 * (3 * 5 + 5 * 2) + 2 * 7 * (3 * 5) + 4 * 7 * (5 * 2)  # forward; dW; dW and dx
    assert case.operations == products + 13 * (3 * 5 + 5 + 5 * 2 + 2)
    assert case.inputs.shape == (7, 3)
    assert growth.images(100).inputs.shape == (100, 1, 28, 28)
    _, sizes, _ = growth.SWEEPS["parameters"]
    assert sizes[-1] == 201_375_744


def test_exponents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from growth import slope

    assert slope([2, 4, 8], [5.0, 20.0, 80.0]) == pytest.approx(2)


def test_an_unknown_sweep_is_refused() -> None:
    done = run(command(1, "benchmarks/growth.py", "height"))
    assert done.returncode == 2
    assert "unknown sweep 'height': choose from batch, images, width" in done.stderr
