"""The page of ddp.bench: every figure beside the library's."""

from pathlib import Path

import pytest

from ddp.bench import Figure
from tests.browser import opened, texts

pytest.importorskip("plotly", reason="pages need plotly: pip install 'allstride[pictures]'")

from ddp.bench.page import page, verdict

SIZES = [2**power for power in range(10, 22, 2)]
FIGURES = [
    Figure(name, size, 2, seconds)
    for size in SIZES
    for name, seconds in (
        ("shared", 1e-6 + size / 2e10),
        ("mpi", 4e-5 + size / 5e9),
        ("mpi_library", 2e-6 + size / 4e9),
    )
]


def test_the_sentence_has_the_smallest_and_the_largest_size() -> None:
    small, large = 1e-6 + 1024 / 2e10, 1e-6 + 2**20 / 2e10
    ratios = [(2e-6 + size / 4e9) / own for size, own in ((1024, small), (2**20, large))]
    assert verdict(FIGURES) == (
        f"1 KiB: shared takes {1e6 * small:.4g} µs, {ratios[0]:.3g} times as fast as the library. "
        f"1 MiB: shared takes {1e6 * large:.4g} µs, {ratios[1]:.3g} times as fast as the library."
    )


def test_without_the_library_there_is_no_ratio() -> None:
    assert "library" not in verdict([figure for figure in FIGURES if figure.transport == "mpi"])


@pytest.mark.full
def test_a_browser_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "bench.html"
    path.write_text(page(FIGURES, "the table"))
    document = opened(path)
    shown = texts(document)
    assert {"1 KiB", "1 MiB", "GB/s", "times faster", "mpi_library", "shared"} <= set(shown)
    assert "<pre>the table</pre>" in document
