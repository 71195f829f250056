"""Stand-ins: functions that do something else for a while, wherever they are known by whatever name.

While a step is recorded, some functions must tell the recorder that they were called. Their code object is exchanged
and later put back, so that they cost nothing when nothing is recorded, and names that other modules imported earlier
are no trouble.
"""

from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Self

Handler = Callable[..., Any]  # handler(original, *args, **kwargs)


def _template(*args: Any, **kwargs: Any) -> Any:
    stand_in: Any = "the constant that becomes the stand-in"
    return stand_in(*args, **kwargs)


_PLACE = "the constant that becomes the stand-in"


def stand_in(function: FunctionType, handler: Handler) -> CodeType:
    """The code with which a call of `function` becomes `handler(original, *args, **kwargs)`."""
    original = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    original.__kwdefaults__ = function.__kwdefaults__
    setattr(original, "__wrapped__", function)  # noqa: B010 - functions have no such attribute for mypy
    handled = partial(handler, original)
    code = _template.__code__
    constants = tuple(handled if constant == _PLACE else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_freevars=function.__code__.co_freevars)


class StandIns:
    """Within the `with` block a call of one of the functions becomes `handler(original, *args, **kwargs)`."""

    def __init__(self, handlers: Iterable[tuple[FunctionType, Handler]]) -> None:
        self._handlers = list(handlers)

    def __enter__(self) -> Self:
        self._codes = [(function, function.__code__) for function, _ in self._handlers]
        for function, handler in self._handlers:
            function.__code__ = stand_in(function, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for function, code in self._codes:
            function.__code__ = code
