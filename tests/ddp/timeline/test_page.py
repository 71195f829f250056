"""The page of a timeline: its figures are those of the words, and a browser shows it without a network."""

import json
import re
from pathlib import Path

import pytest

from ddp.timeline import step_report, step_times
from ddp.timeline.step_times import Blocked, BucketTrip, Record, Span
from tests.browser import opened, texts

pytest.importorskip("plotly", reason="pages need plotly: pip install 'allstride[pictures]'")

from ddp.timeline.page import page

STEP = 0.1  # seconds


def made_up(late: float, steps: int = 6) -> tuple[str, str]:
    """The page and its sentence for three ranks, of which rank 1 comes so many seconds late to every bucket."""
    records = [Record(rank, 0.0) for rank in range(3)]
    for number in range(steps):
        begin = number * STEP
        for record in records:
            filled = begin + 0.05 + (late if record.rank == 1 else 0.0)
            summed = begin + 0.05 + late + 0.01
            meeting = ("gradients", number)
            record.members["gradients"] = (0, 1, 2)
            record.arrivals[meeting] = filled
            record.phases += [Span("forward", begin, begin + 0.02), Span("backward", begin + 0.02, summed)]
            record.phases.append(Span("optimizer", summed, summed + 0.001))
            record.blocked.append(Blocked(meeting, "bucket 1", filled, summed))
            record.buckets.append(BucketTrip(1, "bucket 1", filled, summed, summed))
            record.synchronized.append((summed, 0.25))
    blocked = step_times.pieces(records)
    taken = step_times.steps(records, blocked)
    events = step_report.chrome_events(records, blocked, taken)
    found = step_report.verdict([0, 1, 2], taken)
    return page(events, [0, 1, 2], taken, found.text, step_report.table([0, 1, 2], taken)), found.text


def figures_of(document: str) -> list[list[dict]]:
    """The traces of each figure."""
    return [
        json.loads(traces)
        for traces in re.findall(r"Plotly\.newPlot\(\s*\"[^\"]*\",\s*(\[.*?\]),\s*\{", document, re.DOTALL)
    ]


@pytest.mark.parametrize("late", [0.0, 0.03])
def test_words_and_figures_agree(late: float) -> None:
    """The rank that is named, or not, and the milliseconds, are those of the matrix's last row."""
    document, sentence = made_up(late)
    assert f'<p class="verdict">{sentence}' in document.replace("&#x27;", "'")
    (matrix,) = figures_of(document)[2]
    of_others = matrix["text"][-1]
    waited = re.search(r"([\d.]+) ms of a step's", sentence)
    assert waited is not None
    assert waited[1] == max(of_others, key=float)
    assert ("The others wait for rank 1" in sentence) == (float(of_others[1]) > 1)


def test_medians_are_those_of_the_table() -> None:
    document, _ = made_up(0.03)
    shares = {trace["name"]: trace["x"] for trace in figures_of(document)[1]}
    assert set(shares) == {"waiting", *step_report.SPENT}
    lines = re.search(r"<pre>(.*?)</pre>", document, re.DOTALL)
    assert lines is not None
    names, *rows = (line.split() for line in lines[1].splitlines())
    for rank, row in enumerate(rows):
        for name, value in zip(names[2:-1], row[2:-1], strict=True):
            assert f"{shares[name][rank]:.3g}" == f"{float(value):.3g}"


@pytest.mark.full
def test_a_browser_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "steps.html"
    document, _ = made_up(0.03)
    path.write_text(document)
    shown = texts(opened(path))
    for lane in ("rank 0", "rank 1", "rank 2, buckets"):
        assert lane in shown
    assert {"forward", "backward", "optimizer", "waiting", "transfer", "hidden", "exposed", "the others"} <= set(shown)
