"""Thread-local switches: whether operations are recorded, inference mode, anomaly detection.

Every context manager here also works as a decorator and restores what it found, whatever happens inside.
"""

import functools
import inspect
import sys
import threading
import types
import warnings
from collections.abc import Callable, Generator
from contextlib import ContextDecorator
from typing import Any, Self

from engine.rules.device import default as default_device


class _State(threading.local):
    def __init__(self) -> None:
        self.tasks: list[Any] = []  # the backward runs (GraphTask) this thread is inside of, innermost last

    grad_enabled = True
    inference = False
    anomaly = False
    check_nan = True
    multithreading = True  # whether backward runs the nodes of each GPU on a thread of its own
    layout_contract = True  # whether AccumulateGrad stores first gradients by the gradient layout contract
    saved_tensor_hooks: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = ()
    listeners: tuple[Callable[..., Any], ...] = ()  # who is told of calls, the innermost last
    operator_listeners: tuple[Callable[..., Any], ...] = ()  # those among them who are told of more than functions
    passing: Any = None  # the function that is called on behalf of who was told of its call
    saved_tensor_hooks_disabled: str | None = None  # the error message while `disable_saved_tensors_hooks` is active


state = _State()

_carried: list[threading.local] = [state, default_device]


def carry(local: threading.local) -> None:
    """What a thread has in `local` is to be in force where backward runs nodes on other threads, too."""
    _carried.append(local)


class carried:
    """The modes of this thread; `install` puts them in force on another."""

    def __init__(self) -> None:
        self._values = [(local, dict(local.__dict__)) for local in _carried]

    def install(self) -> None:
        """Puts them in force on this thread."""
        for local, values in self._values:
            local.__dict__.clear()
            local.__dict__.update(values)


class _OpenBlocks:
    """How many blocks are `open`, on all threads together, in which calls take the long way: `inference_mode(True)`,
    and those of listeners (`engine.calls.listening`); `of_operators`: those in which calls of operators do, too.

    Fast paths look here before they ask the thread-local state, which takes 40 ns and more.
    """

    __slots__ = ("lock", "of_operators", "open")

    def __init__(self) -> None:
        self.open = self.of_operators = 0
        self.lock = threading.Lock()

    def count(self, change: int, of_operators: bool = True) -> None:
        with self.lock:
            self.open += change
            if of_operators:
                self.of_operators += change


open_blocks = _OpenBlocks()


class _Switch(ContextDecorator):
    """Sets thread-local fields on entry and restores them on exit; re-entrant.

    As a decorator it is in force while the function's own lines run: those of a generator or a coroutine from one
    suspension to the next, and not in the caller's lines between.
    """

    def __init__(self, **fields: object) -> None:
        self._fields = fields
        self._before: list[dict[str, object]] = []

    def _recreate_cm(self) -> Self:  # by ContextDecorator for each call: calls may run on several threads
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _before=[])
        return twin

    def __call__(self, function: Any) -> Any:
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generator(*args: Any, **keywords: Any) -> Any:
                return _each_step_within(self, function(*args, **keywords))

            return generator
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def coroutine(*args: Any, **keywords: Any) -> Any:
                return await _steps_of_coroutine(self, function(*args, **keywords))

            return coroutine
        return super().__call__(function)

    def __enter__(self) -> Self:
        self._before.append({name: getattr(state, name) for name in self._fields})
        for name, value in self._fields.items():
            setattr(state, name, value)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.pop().items():
            setattr(state, name, value)


def _each_step_within(switch: _Switch, steps: Any) -> Generator[Any, Any, Any]:
    """A generator (or coroutine) that behaves as `steps`, whose code runs within the switch.

    Source: PyTorch's torch/utils/_contextlib.py.
    """
    try:
        with switch._recreate_cm():
            given = steps.send(None)
        while True:
            try:
                request = yield given
            except GeneratorExit:
                with switch._recreate_cm():
                    steps.close()
                raise
            except BaseException:  # noqa: BLE001 - whatever the caller throws is for the generator to see
                with switch._recreate_cm():
                    given = steps.throw(sys.exc_info()[1])
            else:
                with switch._recreate_cm():
                    given = steps.send(request)
    except StopIteration as end:
        return end.value


_steps_of_coroutine = types.coroutine(_each_step_within)


class no_grad(_Switch):
    """Operations inside are not recorded; results do not require grad."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(grad_enabled=False)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        # PyTorch allows the decorator without parentheses.
        return super().__new__(cls) if function is None else cls()(function)


class enable_grad(_Switch):
    """Operations inside are recorded again within `no_grad`."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__(grad_enabled=True)

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return super().__new__(cls) if function is None else cls()(function)


class set_grad_enabled(_Switch):
    """Switches recording on or off: at once when called, restored on exit when used as a context manager."""

    def __init__(self, mode: bool) -> None:
        super().__init__(grad_enabled=bool(mode))
        self._called_with_before: bool | None = state.grad_enabled
        state.grad_enabled = bool(mode)

    def __enter__(self) -> Self:
        if self._called_with_before is not None:
            state.grad_enabled, self._called_with_before = self._called_with_before, None
        return super().__enter__()

    def __call__(self, function: Any) -> Any:
        if self._called_with_before is not None:  # used as a decorator: the call itself must not switch anything
            state.grad_enabled, self._called_with_before = self._called_with_before, None
        return super().__call__(function)


class inference_mode(_Switch):
    """Like `no_grad`; tensors made inside can never be recorded later (they are `is_inference()`)."""

    def __init__(self, mode: bool | Callable[..., Any] = True) -> None:
        super().__init__(**({"grad_enabled": False, "inference": True} if mode else {"inference": False}))

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __enter__(self) -> Self:
        if self._fields["inference"]:
            open_blocks.count(1)
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self._fields["inference"]:
            open_blocks.count(-1)


class set_detect_anomaly:
    """Keeps forward stacks for error messages and, with `check_nan`, checks every gradient for NaN. Slow.

    Switches at once when called; as a context manager it restores on exit what it found.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = (state.anomaly, state.check_nan)
        state.anomaly, state.check_nan = bool(mode), check_nan

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        state.anomaly, state.check_nan = self._before


class detect_anomaly(_Switch):
    """`set_detect_anomaly(True)` inside a context."""

    def __init__(self, check_nan: bool = True) -> None:
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be enabled for "
            "debugging.",
            stacklevel=2,
        )
        super().__init__(anomaly=True, check_nan=check_nan)


class set_layout_contract(_Switch):
    """Whether first gradients obey the gradient layout contract; with False they become `.grad` in whatever layout they
    come, and whoever needs another one copies. There to measure what the contract saves.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(layout_contract=bool(mode))


class set_multithreading_enabled(_Switch):
    """Whether backward runs the nodes of each GPU on a thread of its own (the default), or all on the caller's."""

    def __init__(self, mode: bool) -> None:
        super().__init__(multithreading=bool(mode))


def is_grad_enabled() -> bool:
    """Whether operations are being recorded on this thread."""
    return state.grad_enabled


def is_multithreading_enabled() -> bool:
    """Whether a backward pass started on this thread runs the nodes of each GPU on a thread of its own."""
    return state.multithreading


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return state.inference


def is_anomaly_enabled() -> bool:
    """Whether anomaly detection is on for this thread."""
    return state.anomaly


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """`autograd.set_detect_anomaly` as a plain function."""
    set_detect_anomaly(mode, check_nan)
