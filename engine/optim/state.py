"""The state of an optimizer's parameters, in dictionaries that note when one of them was changed last.

A step then asks once whether the state is what it was, and not of each tensor: 10 µs for 48 parameters of Adam.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

from engine.tensor.exchanged import Mark

changed = Mark()
"""Of any of these dictionaries."""


class StateOfParameter(dict[str, Any]):
    """By name. Pickled and copied it is a dict."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


class State(defaultdict[Any, dict[str, Any]]):
    """By parameter; where there is none yet, a new one."""

    __slots__ = ()


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        finally:
            changed.last = object()

    return noted


for _kind in (StateOfParameter, State):
    for _name in ("__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault", "update"):
        setattr(_kind, _name, _noted(getattr(_kind, _name)))
State.__missing__ = _noted(State.__missing__)  # type: ignore[method-assign]  # which sets no item on Python 3.14.10


def noting(state: dict[Any, Any]) -> State:
    """The same state in dictionaries that note."""
    made = State(StateOfParameter)
    for key, value in state.items():
        made[key] = StateOfParameter(value) if type(value) is dict else value
    return made
