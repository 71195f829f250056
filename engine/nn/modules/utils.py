"""For code written outside: numbers repeated to tuples (`_pair(3)` is (3, 3)), names in state dicts."""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """A function that repeats a number n times and makes a tuple of anything iterable."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Takes a prefix off the names in a state dict, in place: "module." of one that a wrapped model saved."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[name.removeprefix(prefix)] = state_dict.pop(name)
    metadata = getattr(state_dict, "_metadata", {})  # by name of module, "" for the wrapper itself
    for name in [name for name in metadata if name and f"{name}.".startswith(prefix)]:
        metadata[f"{name}.".removeprefix(prefix).removesuffix(".")] = metadata.pop(name)
