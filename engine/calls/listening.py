"""One seam for whoever listens to calls: autocast, capture, `engine.trace`, `ddp.timeline`.

A listener is a function of a key and a target that returns what is to be called in place of it, or None: that handler
gets the way on (to the listeners around this one, and at last to the target itself) and the arguments of the call. The
keys, in the order in which a call comes to them:

* FUNCTION, a public function or another one that is decorated with `heard`; one that is made of operators
  (CompositeImplicit) is told around them. Target: the function.
* AUTOGRAD, a call of an operator that is recorded, around the kernel to which it is redispatched. Target: its Plan.
* KERNEL, the kernel of an operator in host memory, on a GPU or on "meta"; arguments are raw arrays. Target: the Plan.
* BACKWARD, a node that runs. Target: the node; arguments are those of its `apply`.

Who listens does so on one thread (and those that work for it in backward). Where nobody does, on any thread, a call
looks at one number, `open_blocks.open`; that of an operator at `open_blocks.of_operators`, which leaves out those who
listen to functions alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, TypeVar

from engine.autograd.modes import open_blocks, state

FUNCTION, AUTOGRAD, KERNEL, BACKWARD = "Function", "Autograd", "Kernel", "Backward"

Handler = Callable[..., Any]  # handler(proceed, *args, **kwargs)
Listener = Callable[[str, Any], Handler | None]
Function = TypeVar("Function", bound=Callable[..., Any])

HEARD: set[Callable[..., Any]] = set()
"""The functions whose calls are told."""


def call(key: str, target: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` as those have it who listen on this thread, the innermost first."""
    listeners = state.listeners if key is FUNCTION else state.operator_listeners
    return _through(listeners, key, target, function, args, kwargs)


def _through(
    listeners: tuple[Listener, ...],
    key: str,
    target: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    while listeners:
        handler = listeners[-1](key, target)
        listeners = listeners[:-1]
        if handler is not None:
            return handler(partial(_proceed, listeners, key, target, function), *args, **kwargs)
    return function(*args, **kwargs)


def _proceed(
    listeners: tuple[Listener, ...],
    key: str,
    target: Any,
    function: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    return _through(listeners, key, target, function, args, kwargs)


def heard(function: Function) -> Function:
    """Decorator: whoever listens is told of calls of this function. Where nobody does, a call takes 0.1 µs more."""

    @wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        if open_blocks.open and state.listeners:
            return _through(state.listeners, FUNCTION, told, function, args, kwargs)
        return function(*args, **kwargs)

    HEARD.add(told)
    return told  # type: ignore[return-value]


def hears(function: Function) -> Function:
    """Decorator of a function that tells of its calls itself, where 0.1 µs would be too much; it begins with

    if open_blocks.open and wanted(function):
        return tell(function, arguments)
    """
    HEARD.add(function)
    return function


def wanted(function: Any) -> bool:
    """Whether somebody listens on this thread who was not told of this call yet."""
    if state.passing is function:
        state.passing = None
        return False
    return bool(state.listeners)


def tell(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` as those have it who listen."""
    return call(FUNCTION, function, partial(_pass, function), *args, **kwargs)


def _pass(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    state.passing = function
    return function(*args, **kwargs)


def add(listener: Listener, functions_only: bool = False) -> None:
    """`listener` listens on this thread, as the innermost; with `functions_only` to the key FUNCTION alone."""
    open_blocks.count(1, not functions_only)
    state.listeners = (*state.listeners, listener)
    if not functions_only:
        state.operator_listeners = (*state.operator_listeners, listener)


def remove(listener: Listener) -> None:
    """Undoes `add`."""
    of_operators = listener in state.operator_listeners
    state.listeners = tuple(each for each in state.listeners if each is not listener)
    state.operator_listeners = tuple(each for each in state.operator_listeners if each is not listener)
    open_blocks.count(-1, of_operators)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """`listener` listens inside the block, on this thread."""
    add(listener)
    try:
        yield
    finally:
        remove(listener)
