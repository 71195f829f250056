"""The examples in docstrings run, and print what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    path.relative_to(ROOT)
    for package in ("engine", "ddp", "launch")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "\n    >>> " in path.read_text() or "\n>>> " in path.read_text()
]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_examples_of_a_module(path: Path) -> None:
    parts = path.with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
