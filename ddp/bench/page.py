"""`python -m ddp.bench --plot bandwidth.html`: the figures as a page."""

from collections.abc import Sequence
from typing import Any

from ddp.bench.figures import LIBRARIES, Figure, size_in_words
from ddp.pictures import document, load_plotly

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")


def page(figures: Sequence[Figure], table: str) -> str:
    """Bus bandwidth by size of every transport and of the MPI library, and the time of each beside the library's."""
    graph = load_plotly()
    return document(
        f"Sums over {figures[0].ranks} ranks",
        verdict(figures),
        table,
        [
            (
                "Bandwidth by size",
                "Bus bandwidth: what has to travel at least, in a second.",
                _plot(graph, figures, lambda figure, _: figure.as_json()["busbw_GBps"], "GB/s"),
            ),
            (
                "Time beside the library's",
                "How many times faster than the MPI library's own sum of that size; below 1: slower.",
                _plot(graph, figures, _times_faster, "times faster"),
            ),
        ],
    )


def verdict(figures: Sequence[Figure]) -> str:
    """The fastest way of the most and of the least bytes, beside the library's, in a sentence each."""
    words = []
    for nbytes in sorted({min(f.bytes for f in figures), max(f.bytes for f in figures)}):
        ours = [figure for figure in figures if figure.bytes == nbytes and figure.transport not in LIBRARIES]
        if not ours:
            continue
        best = min(ours, key=lambda figure: figure.seconds)
        text = f"{size_in_words(nbytes)}: {best.transport} takes {1e6 * best.seconds:.4g} µs"
        ratio = _times_faster(best, figures)
        words.append(text + (f", {ratio:.3g} times as fast as the library." if ratio else "."))
    return " ".join(words)


def _times_faster(figure: Figure, figures: Sequence[Figure]) -> float | None:
    """None where the library was not measured, or this is it."""
    if figure.transport in LIBRARIES:
        return None
    of_library = [f.seconds for f in figures if f.transport in LIBRARIES and f.bytes == figure.bytes]
    return of_library[0] / figure.seconds if of_library else None


def _plot(graph: Any, figures: Sequence[Figure], value: Any, unit: str) -> Any:
    drawn = graph.Figure()
    for number, name in enumerate(dict.fromkeys(figure.transport for figure in figures)):
        line = [figure for figure in figures if figure.transport == name]
        points = [(f, y) for f in line if (y := value(f, figures)) is not None]
        if not points:
            continue
        drawn.add_scatter(
            name=name, x=[f.bytes for f, _ in points], y=[y for _, y in points],
            mode="lines+markers", marker={"size": 6}, line={"color": _COLOURS[number % len(_COLOURS)]},
            customdata=[f"{size_in_words(f.bytes)}: {1e6 * f.seconds:.4g} µs" for f, _ in points],
            hovertemplate=f"%{{customdata}}<br>%{{y:.3g}} {unit}<extra>{name}</extra>",
        )  # fmt: skip
    sizes = sorted({figure.bytes for figure in figures})
    drawn.update_layout(
        height=430,
        xaxis={"type": "log", "title": "size", "tickvals": sizes, "ticktext": [size_in_words(s) for s in sizes]},
        yaxis={"type": "log", "title": unit, "dtick": 1},
    )
    if unit == "times faster":
        drawn.add_hline(y=1, line_width=1, line_color="#444")
    return drawn
