"""The benchmark of the transports runs, and says what it promises."""

import argparse
import json
from pathlib import Path

import pytest

from ddp.bench import Figure, parse_bytes, plot, sizes_between
from tests.mpi_job import run_job

PROGRAM = "from ddp.bench import main\nmain()\n"


def test_every_transport_and_mpis_own_sum_are_measured_both_ways() -> None:
    result = run_job(PROGRAM, 2, timeout=120, args=["--json", "--max-bytes", "16K"])
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(line["transport"], line["bytes"], line["in_place"]) for line in lines} == {
        (name, size, in_place)
        for name in ("shared", "mpi", "mpi_library")
        for size in (1024, 4096, 16384)
        for in_place in (True, False)
    }
    for line in lines:
        assert line["ranks"] == 2
        assert line["busbw_GBps"] == pytest.approx(line["algbw_GBps"])
        assert line["algbw_GBps"] == pytest.approx(line["bytes"] / line["seconds"] / 1e9, abs=1e-4)


def test_the_table_and_the_choice() -> None:
    result = run_job(PROGRAM, 3, timeout=120, args=["--transport", "shared", "--max-bytes", "4K"])
    assert result.returncode == 0, result.stderr
    heading, *rows = result.stdout.splitlines()
    assert heading.split()[:2] == ["bytes", "transport"]
    assert [row.split()[:3] for row in rows] == [
        [size, "shared", in_place] for size in ("1024", "4096") for in_place in ("no", "yes")
    ]


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


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib: pip install 'allstride[examples]'")
    figures = [Figure("shared", size, 2, size / 1e9, in_place) for size in (1024, 4096) for in_place in (True, False)]
    plot(figures, str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
