"""`torch.jit` in code that also runs without it: questions with the answer no, and decorators that change nothing."""

import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from engine.errors.absent import absent

__all__ = [
    "Final",
    "export",
    "ignore",
    "is_scripting",
    "is_tracing",
    "script",
    "script_if_tracing",
    "trace",
    "unused",
]

Anything = TypeVar("Anything")
_told: set[str] = set()


def is_scripting() -> bool:
    """False."""
    return False


def is_tracing() -> bool:
    """False."""
    return False


def unused(fn: Anything) -> Anything:
    """`fn`."""
    return fn


def export(fn: Anything) -> Anything:
    """`fn`."""
    return fn


def script_if_tracing(fn: Anything) -> Anything:
    """`fn`."""
    return fn


_script_if_tracing = script_if_tracing


def _overload_method(func: Anything) -> Anything:
    return func


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """The function; a decorator with or without arguments."""
    return drop if callable(drop) else lambda fn: fn


def _as_it_is(call: str, obj: Anything) -> Anything:
    if call not in _told:
        _told.add(call)
        warnings.warn(f"engine.jit.{call}: there is no TorchScript here; it runs as it is", UserWarning, stacklevel=3)
    return obj


def script(obj: Anything, *args: Any, **kwargs: Any) -> Anything:
    """`obj` as it is, with a warning the first time."""
    return _as_it_is("script", obj)


def trace(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """`func` as it is, with a warning the first time."""
    return _as_it_is("trace", func)


def __getattr__(name: str) -> NoReturn:
    raise absent("engine.jit", name)
