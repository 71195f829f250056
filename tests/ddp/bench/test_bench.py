"""The benchmark of the transports runs, and says what it promises."""

import argparse
import json
from pathlib import Path

import pytest

from ddp.bench import Figure, parse_bytes, plot, size_in_words, sizes_between
from tests.mpi_job import run_job

PROGRAM = "from ddp.bench import main\nmain()\n"


@pytest.mark.full
def test_every_transport_and_mpis_own_sum_are_measured() -> None:
    result = run_job(PROGRAM, 2, timeout=120, args=["--json", "--max-bytes", "16K"])
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(line["transport"], line["bytes"]) for line in lines} == {
        (name, size) for name in ("shared", "mpi", "hierarchical", "mpi_library") for size in (1024, 4096, 16384)
    }
    for line in lines:
        assert set(line) == {"transport", "bytes", "ranks", "seconds", "algbw_GBps", "busbw_GBps"}
        assert line["ranks"] == 2
        assert line["busbw_GBps"] == pytest.approx(line["algbw_GBps"])
        assert line["algbw_GBps"] == pytest.approx(line["bytes"] / line["seconds"] / 1e9, abs=1e-4)


@pytest.mark.full
def test_the_table_and_the_choice() -> None:
    result = run_job(PROGRAM, 3, timeout=120, args=["--transport", "shared", "--max-bytes", "4K"])
    assert result.returncode == 0, result.stderr
    *heading, first, second = result.stdout.splitlines()
    assert [line[0] for line in heading] == ["#"] * 2
    assert heading[0].split()[1:] == ["size", "count", "transport", "time", "algbw", "busbw"]
    assert first.split()[:3] == ["1024", "256", "shared"]
    assert second.split()[:3] == ["4096", "1024", "shared"]
    for row in (first, second):
        microseconds, algorithm, bus = map(float, row.split()[3:])
        assert algorithm == pytest.approx(int(row.split()[0]) / microseconds / 1e3, abs=0.006, rel=0.05)
        assert bus == pytest.approx(algorithm * 4 / 3, abs=0.012)


def test_one_rank_is_told_that_it_takes_two() -> None:
    result = run_job(PROGRAM, 1, timeout=60)
    assert result.returncode != 0
    assert "at least 2 ranks" in result.stderr


def test_sizes() -> None:
    assert sizes_between(1024, 1024) == [1024]
    assert sizes_between(1024, 20_000) == [1024, 4096, 16384, 20_000]
    assert [parse_bytes(text) for text in ("1000", "2k", "3M", "1G")] == [1000, 2048, 3 * 2**20, 2**30]
    for text in ("", "K", "1.5M", "-4", "5", "2T"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a size like"):
            parse_bytes(text)


def test_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A colour a transport, sizes in powers of two, the legend beside the axes."""
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib: pip install 'allstride[examples]'")
    from matplotlib import pyplot as plt

    kept = []
    monkeypatch.setattr(plt, "close", kept.append)
    names, sizes = ("shared", "mpi"), [2**power for power in range(10, 29)]
    figures = [Figure(name, size, 2, size / 1e9) for size in sizes for name in names]
    plot(figures, str(tmp_path / "plot.png"))
    monkeypatch.undo()
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    (drawing,) = kept
    (axes,) = drawing.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == set(names)
    assert lines["shared"].get_color() != lines["mpi"].get_color()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == [size_in_words(size) for size in sizes[::2]]
    (legend,) = drawing.legends
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
    plt.close(drawing)


def test_sizes_in_words() -> None:
    assert [size_in_words(size) for size in (1000, 1024, 3 << 19, 25 << 20, 2 << 30)] == [
        "1000 B",
        "1 KiB",
        "1536 KiB",
        "25 MiB",
        "2 GiB",
    ]
