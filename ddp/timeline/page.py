"""`timeline.save("steps.html")`: the steps of all ranks as a page. Its figures are those of the summary."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from ddp.pictures import document, load_plotly
from ddp.timeline.step_report import SPENT, spent, waited_for
from ddp.timeline.step_times import Step

# Tol's bright scheme, which those who do not tell red from green can read.
_COLOURS = {
    "forward": "#4477aa",
    "backward": "#66ccee",
    "optimizer": "#228833",
    "rest": "#bbbbbb",
    "transfer": "#ccbb44",
    "waiting": "#ee6677",
    "sum": "#aa3377",
    "hand out": "#ddaacc",
    "hidden": "#66ccee",
    "exposed": "#ee6677",
}
_SHOWN = 3  # steps to begin with; the others by dragging
_MOST = 20_000  # spans that a browser draws without a pause


def page(
    events: Sequence[dict[str, Any]], ranks: Sequence[int], taken: Sequence[Sequence[Step]], verdict: str, table: str
) -> str:
    """events: of `step_report.chrome_events`. taken: of each rank the steps that the summary is about."""
    graph = load_plotly()
    return document(
        f"Steps of {len(ranks)} rank{'' if len(ranks) == 1 else 's'}",
        verdict,
        table,
        [
            (
                "What each rank did",
                "Above its phases and what it waited for, below its buckets under way. Drag to see other steps.",
                _lanes(graph, events, ranks, taken),
            ),
            (
                "Where the time of a step goes",
                "Medians, as in the table. Waiting is for other ranks, transfer for bytes when all were there.",
                _shares(graph, ranks, taken),
            ),
            (
                "Who waits for whom",
                "Mean ms of a step that the rank on the left waits for the one below; the last row is said above.",
                _matrix(graph, ranks, taken),
            ),
            (
                "Hidden and exposed communication",
                "Medians: how long buckets were under way in a step; hidden is what backward went on meanwhile.",
                _hidden(graph, events, ranks, taken),
            ),
        ],
    )


def _lanes(graph: Any, events: Sequence[dict[str, Any]], ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> Any:
    spans = [event for event in events if event["ph"] == "X" and event["cat"] in ("phase", "blocked", "stage")]
    kinds: dict[str, list[tuple[str, float, float, str]]] = {name: [] for name in _COLOURS}
    for event in spans[-_MOST:]:
        kind = "waiting" if event["name"].startswith("waits for") else event["name"]
        lane = f"rank {event['pid']}" + (", buckets" if event["cat"] == "stage" else "")
        words = event["name"] if event["cat"] != "stage" else f"bucket {event['tid']}: {event['name']}"
        kinds[kind].append((lane, event["ts"] / 1e3, event["dur"] / 1e3, words))
    figure = graph.Figure()
    for kind, found in kinds.items():
        if found:
            lanes, begins, lengths, words = zip(*found, strict=True)
            figure.add_bar(
                name=kind, y=lanes, base=begins, x=lengths, orientation="h", marker_color=_COLOURS[kind],
                marker_line_width=0, width=0.45 if kind in ("waiting", "transfer") else 0.8, customdata=words,
                hovertemplate="%{customdata}<br>%{x:.3f} ms from %{base:.3f} ms on<extra>%{y}</extra>",
            )  # fmt: skip
    order = [lane for rank in ranks for lane in (f"rank {rank}", f"rank {rank}, buckets")]
    steps = [event for event in events if event["ph"] == "X" and event["cat"] == "step"]
    ends = sorted((event["ts"] + event["dur"]) / 1e3 for event in steps if event["pid"] == ranks[0])
    for end in ends[-_MOST:]:
        figure.add_vline(x=end, line_width=1, line_dash="dot", line_color="#888")
    middle = len(ends) // 2
    first, last = max(0, middle - _SHOWN + 1), min(len(ends) - 1, middle + 1)
    window = [ends[first - 1] if first else 0.0, ends[last]] if ends else None
    figure.update_layout(
        barmode="overlay", bargap=0.2, height=110 + 60 * len(ranks), dragmode="pan",
        xaxis={"title": "ms", "range": window, "rangeslider": {"visible": True, "thickness": 0.12}},
        yaxis={"categoryorder": "array", "categoryarray": order[::-1], "fixedrange": True},
    )  # fmt: skip
    return figure


def _shares(graph: Any, ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> Any:
    parts = {
        part: [1e3 * median(spent(step, part) for step in own) if own else 0.0 for own in taken]
        for part in ("waiting", *SPENT)
    }
    return _stacked(graph, ranks, parts)


def _stacked(graph: Any, ranks: Sequence[int], parts: Mapping[str, Sequence[float]]) -> Any:
    """A bar for each rank, of milliseconds by name."""
    figure = graph.Figure()
    for name, values in parts.items():
        figure.add_bar(
            name=name, y=[f"rank {rank}" for rank in ranks], x=values, orientation="h", marker_color=_COLOURS[name],
            hovertemplate=f"{name} %{{x:.3g}} ms<extra>%{{y}}</extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack", height=110 + 40 * len(ranks), xaxis={"title": "ms"})
    figure.update_layout(legend_traceorder="normal", yaxis={"autorange": "reversed"})
    return figure


def _matrix(graph: Any, ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> Any:
    rows = [
        [
            1e3 * fmean(step.waiting.get(other, 0.0) for step in own) if own and other != rank else None
            for other in ranks
        ]
        for rank, own in zip(ranks, taken, strict=True)
    ]
    means = [1e3 * fmean(lost) if lost else 0.0 for lost in waited_for(ranks, taken)]
    shown: list[Sequence[float | None]] = [*rows, means]
    figure = graph.Figure(
        graph.Heatmap(
            z=shown, x=[f"rank {rank}" for rank in ranks], y=[*(f"rank {rank}" for rank in ranks), "the others"],
            text=[["" if value is None else f"{value:.3g}" for value in row] for row in shown],
            texttemplate="%{text}", colorscale="Reds", zmin=0, xgap=2, ygap=2, colorbar={"title": "ms"},
            hovertemplate="%{y} waits for %{x}: %{text} ms<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(height=150 + 40 * len(ranks), plot_bgcolor="#f4f4f4")
    figure.update_yaxes(autorange="reversed")
    return figure


def _hidden(graph: Any, events: Sequence[dict[str, Any]], ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> Any:
    hidden, exposed = [], []
    for rank, own in zip(ranks, taken, strict=True):
        of_rank = [event for event in events if event["ph"] == "X" and event["pid"] == rank]
        steps = [(event["ts"], event["ts"] + event["dur"]) for event in of_rank if event["cat"] == "step"]
        steps = steps[1 : len(own) + 1] if len(steps) > len(own) else steps
        sums = [event for event in of_rank if event["cat"] == "stage" and event["name"] == "sum"]
        both = []
        for (begin, end), step in zip(steps, own, strict=False):
            under_way = _union([(s["ts"], s["ts"] + s["dur"]) for s in sums if begin <= s["ts"] < end]) / 1e3
            both.append((under_way * step.hidden, under_way * (1 - step.hidden)))
        hidden.append(median(pair[0] for pair in both) if both else 0.0)
        exposed.append(median(pair[1] for pair in both) if both else 0.0)
    return _stacked(graph, ranks, {"hidden": hidden, "exposed": exposed})


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """The length of all spans together, what two of them share counted once."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
