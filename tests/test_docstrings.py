"""The examples in docstrings run, and print what they say; no method of Tensor is without a docstring."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import engine

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


def test_methods_and_operators_of_tensor_have_docstrings() -> None:
    names = [
        name
        for name in dir(engine.Tensor)
        if not name.startswith("_") or (name.endswith("__") and inspect.getattr_static(object, name, None) is None)
    ]
    assert {"add", "add_", "T", "__add__", "__radd__", "__iadd__", "__getitem__"} <= set(names)
    bare = {name for name in names if not inspect.getattr_static(engine.Tensor, name).__doc__}
    assert bare - {"__annotate_func__", "__annotations_cache__"} == set()  # Python 3.14's own


def test_help_on_an_operator_says_what_it_is_and_where_more_is_said() -> None:
    assert engine.Tensor.__floordiv__.__name__ == "__floordiv__"
    assert engine.Tensor.__floordiv__.__doc__ == "`self // other`: see `engine.floor_divide`."
    assert engine.Tensor.__eq__.__doc__ == "`self == other`: see `engine.eq`."
