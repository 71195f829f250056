"""The prediction as a page for a browser."""

from collections.abc import Sequence

from ddp.forecast.prediction import Prediction
from ddp.pictures import document, load_plotly


def page(predictions: Sequence[Prediction], table: str, link: str) -> str:
    """Efficiency over nodes, and what a step is made of. Raises: ImportError without plotly."""
    graph = load_plotly()
    nodes = [found.nodes for found in predictions]
    efficiency = graph.Figure(
        graph.Scatter(x=nodes, y=[100 * found.efficiency for found in predictions], mode="lines+markers")
    )
    efficiency.update_layout(
        height=350, xaxis={"type": "log", "title": "nodes", "tickvals": nodes}, yaxis={"title": "%", "range": [0, 105]}
    )
    parts = graph.Figure()
    for name, colour in (("own", "#4477aa"), ("slowest", "#ee6677"), ("exposed", "#ccbb44")):
        parts.add_bar(
            name=name, x=[str(count) for count in nodes], marker_color=colour,
            y=[1e3 * getattr(found, name) for found in predictions],
        )  # fmt: skip
    parts.update_layout(
        barmode="stack", height=350, xaxis={"title": "nodes", "type": "category"}, yaxis={"title": "ms"}
    )
    last = predictions[-1]
    verdict = f"{last.nodes} nodes behind {link}: {last.efficiency:.1%} efficiency, limited by {last.limit}."
    return document(
        "A step on more nodes",
        verdict,
        table,
        [
            ("Efficiency", "The share of a step in which a rank works, with the same batch on each rank.", efficiency),
            ("A step", "Own work, the wait for the slowest rank, and sums that backward does not hide.", parts),
        ],
    )
