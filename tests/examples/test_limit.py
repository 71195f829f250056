"""benchmarks/limit.py: what it counts, its lines and its table; how far a step is from the limit is nobody's test."""

import json
import re
from pathlib import Path

import pytest

from tests.examples.running import ROOT, command, run


@pytest.mark.full
def test_a_workload_is_measured_and_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- limit: begin --><!-- limit: end -->")
    done = run(command(1, "benchmarks/limit.py", "tiny", "--write", page))
    assert done.returncode == 0, done.stderr
    peak, line = map(json.loads, done.stdout.splitlines())
    assert line["workload"] == "tiny"
    assert line["over"] == pytest.approx(line["step_ms"] / (line["products_ms"] + line["traffic_ms"]), rel=0.05)
    written = re.search(r"(\d+) GFLOP/s", page.read_text())
    assert written is not None
    assert int(written[1]) == pytest.approx(peak["peak_GFLOP_s"], abs=0.6)  # rounded twice
    assert page.read_text().count("\n| ") == 2  # the heading, one workload


def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: linear layers of a batch, a convolution, an LSTM, and attention."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import workloads
    from limit import work_of
    from workloads import library, nn

    work = work_of(workloads.layers(3, 5, 2), library.ones(7, 3))
    parameters = 3 * 5 + 5 + 5 * 2 + 2
    assert work.operations == 2 * 7 * (3 * 5 * 2 + 5 * 2 * 3)  # no gradient of the first input
    assert work.moved == 4 * (10 * parameters + 3 * 7 * (3 + 5) + 2 * 7 * (5 + 2))
    assert work.touched == 4 * (4 * parameters + 7 * (3 + 5) + 7 * (5 + 2))
    assert work_of(nn.Conv2d(2, 4, 3), library.ones(1, 2, 6, 6)).operations == 2 * (4 * 4) * (2 * 9 * 4) * 2
    assert work_of(nn.LSTM(3, 5, batch_first=True), library.ones(2, 7, 3)).operations == 2 * 14 * 20 * (3 * 2 + 5 * 3)
    with pytest.raises(TypeError, match="the products of GRU are not counted"):
        work_of(nn.GRU(3, 5), library.ones(2, 7, 3))
    of_one, of_two = (work_of(workloads.GPT(8, blocks=n), library.ones(1, 8, dtype=library.int64)) for n in (1, 2))
    assert of_two.operations - of_one.operations == 6 * (8 * 12 * 128**2 + 8 * 8 * 128)


def test_performance_names_scripts_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the page has a place for each table."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from performance import COMMANDS

    assert all((ROOT / command.split()[0]).exists() for command in COMMANDS)
    assert (ROOT / "PERFORMANCE.md").read_text().count(": begin -->") == len(COMMANDS)
