"""One HTML file of words and plotly figures; plotly's program is in it, 5 MB, so that nothing is fetched."""

from collections.abc import Sequence
from html import escape
from typing import Any

_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ font: 15px/1.5 sans-serif; margin: 1.5em auto; max-width: 1200px; padding: 0 1em; color: #222 }}
h1 {{ font-size: 1.5em }} h2 {{ font-size: 1.15em; margin: 1.5em 0 0.2em }}
p.verdict {{ font-size: 1.1em; border-left: 4px solid #4477aa; padding-left: 0.7em }}
pre {{ overflow-x: auto; background: #f4f4f4; padding: 0.8em; font-size: 13px }}
</style>
<script>{program}</script></head><body>
<h1>{title}</h1>
"""


def load_plotly() -> Any:
    """The module plotly.graph_objects. Raises ImportError with what to do where plotly is missing."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise ImportError(
            "a page of pictures needs plotly: pip install 'allstride[pictures]'; the other formats do not"
        ) from error
    return plotly.graph_objects


def document(title: str, verdict: str, table: str, figures: Sequence[tuple[str, str, Any]]) -> str:
    """The page: a sentence that says it all, figures with a heading and an explanation each, the numbers as text."""
    from plotly.offline import get_plotlyjs

    parts = [_HEAD.format(title=escape(title), program=get_plotlyjs()), f'<p class="verdict">{escape(verdict)}</p>']
    for heading, explanation, figure in figures:
        figure.update_layout(
            template="plotly_white",
            margin={"l": 70, "r": 20, "t": 20, "b": 45},
            font={"size": 13, "family": "sans-serif"},
        )
        drawn = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
        parts.append(f"<h2>{escape(heading)}</h2>\n<p>{escape(explanation)}</p>\n{drawn}")
    parts.append(f"<h2>In numbers</h2>\n<pre>{escape(table)}</pre>\n</body></html>\n")
    return "\n".join(parts)
