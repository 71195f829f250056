"""The page of names from PyTorch's sources leads to what exists."""

import importlib
import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs/names.md").read_text()
ASKED_FOR = ("prepare_for_backward", "mark_variable_ready", "finalize_backward", "rebuild_buckets", "fast_set_up")


def found(path: str) -> Any:
    """What a dotted path leads to: a module, then attributes."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"no module in {path}")


def test_every_name_exists() -> None:
    paths = re.findall(r"`((?:ddp|engine)\.[\w.]+)`", PAGE)
    assert len(paths) > 40
    for path in paths:
        assert found(path) is not None, path


def test_the_names_that_readers_look_for_are_there() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert all(any(f"`{name}`" in row.split("|")[1] for row in rows) for name in ASKED_FOR)
