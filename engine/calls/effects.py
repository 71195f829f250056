"""Functions of ours whose Python has effects that outlast a training step: `engine.compile` replays calls of them by
calling them again, with the tensors of the replay; or it cannot, and says so.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from engine.calls.listening import heard

Function = TypeVar("Function", bound=Callable[..., Any])

EFFECTS: list[Callable[..., Any]] = []
UNREPLAYABLE: list[Callable[..., Any]] = []


def effect(function: Function) -> Function:
    """Decorator: a captured step calls this function for real at every replay. It may return None or a Tensor."""
    told = heard(function)
    EFFECTS.append(told)
    return told


def unreplayable(function: Function) -> Function:
    """Decorator: a step that calls this function, but in an `effect`, is not captured and runs eagerly."""
    told = heard(function)
    UNREPLAYABLE.append(told)
    return told
