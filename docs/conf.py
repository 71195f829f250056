"""How Sphinx builds the documentation: `sphinx-build -W docs out/site`, with the extra `docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import api  # noqa: E402
import walk  # noqa: E402

project = "allstride"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["*.py"]
html_theme = "furo"
html_title = "allstride"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

api.write(HERE / "reference")
(HERE / "reference" / "gradient_walk.txt").write_text(walk.table())
