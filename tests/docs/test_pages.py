"""What the pages of docs/ show runs."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, run_page

PAGES = sorted(page for page in DOCS.rglob("*.md") if "reference" not in page.parts)
LANGUAGES = {"bash", "python", "text"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_block_is_run_or_text(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= LANGUAGES
    patterns = ("^```|^<!-- |^-->", r"^```\{")
    fences, directives = (len(re.findall(pattern, page.read_text(), re.MULTILINE)) for pattern in patterns)
    assert fences == 2 * (len(blocks(page)) + directives)


def test_files_that_the_pages_name_exist() -> None:
    """Except those of users: a path that begins with a folder of this project."""
    for page in PAGES:
        named = re.findall(r"`((?:engine|ddp|launch|tests|examples|docs)/[\w/]+\.\w+)`", page.read_text())
        assert [name for name in named if not (ROOT / name).exists()] == [], page


def test_pictures_are_what_the_code_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import drawings

    for name, draw in drawings.DRAWINGS.items():
        assert (DOCS / "pictures" / name).read_text() == draw(), "python docs/drawings.py draws them anew"


def test_the_walk_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call to the sum over the ranks, and every file has a sentence that says what it is about."""
    monkeypatch.syspath_prepend(DOCS)
    import walk

    found = dict(walk.files_of_a_step())
    assert next(iter(found)) == "engine/autograd/api.py"
    assert len(found) <= 20
    assert {"engine/autograd/executor.py", "ddp/gradients/reducer.py", "ddp/transport/mpi.py"} <= found.keys()
    assert [path for path in found if not walk.idea(path)] == []


@pytest.mark.full
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.language in ("bash", "python") for block in blocks(page))],
    ids=lambda page: str(page.relative_to(DOCS)),
)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch)
