"""Rows of the checklist that tests name stand in its page, and the page names those tests."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/checklist.md").read_text()
ROW = re.compile(r"\b([ABDEHU])(\d{1,2})(?:(?:-| to )\1(\d{1,2}))?\b")


def named(text: str) -> set[str]:
    """The rows that a text names: "E4", "E24-E33", "D1 to D3"."""
    return {
        f"{letter}{number}"
        for letter, first, last in ROW.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def test_every_row_says_where_it_is_held_and_every_name_of_a_row_leads_there() -> None:
    files = [*(TESTS / "ddp").rglob("test_*.py"), *(TESTS / "engine/autograd").glob("test_*.py")]
    in_tests = {(row, str(file.relative_to(TESTS.parent))) for file in files for row in named(file.read_text())}
    rows = re.findall(r"^\| ([A-Z]\d+) \| .+ \| (.*) \|$", PAGE, re.MULTILINE)
    in_page = {(row, file) for row, held in rows for file in re.findall(r"`([^`]+)`", held)}
    assert len(rows) == len(dict(rows)) > 190
    assert {row for row, _ in in_page} == set(dict(rows))  # none without a test
    assert in_page == in_tests
