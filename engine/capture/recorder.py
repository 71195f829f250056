"""The recorder: what a step does to raw arrays, in order, as a list of events.

Arrays are known by identity while a step is recorded (they are kept alive, so no two share an id). One that a recorded
call returned, or that is an argument, is a *slot*: at a replay, the variable that holds what the same call returns then.
Any other was there before: *external* memory, parameters and buffers above all, which a replay reads where it is.
Whether that is true of an array is decided by recording twice (`engine.capture.program`).
"""

import os
import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

import engine
from engine.spec import Spec
from engine.tensor import Tensor

_PACKAGES = (os.path.join(os.path.dirname(os.path.abspath(engine.__file__)), ""),)

# --- what an event refers to ------------------------------------------------------------------------------------------


class Slot(NamedTuple):
    """An array that a recorded call made, or an argument."""

    number: int


class External(NamedTuple):
    """An array that was there before."""

    array: Any


class Constant(NamedTuple):
    """A Python object."""

    value: Any


class Wrapped(NamedTuple):
    """A Tensor on the array of a slot."""

    slot: Slot
    spec: Spec


class Known(NamedTuple):
    """A Tensor that was there before."""

    tensor: Tensor


class Shell(NamedTuple):
    """A Tensor of which only the Spec is looked at."""

    spec: Spec


class Group(NamedTuple):
    """A tuple, list or dictionary of the others."""

    kind: type
    keys: tuple[Any, ...]
    items: tuple[Any, ...]


class Event(NamedTuple):
    """One thing that a replay does: `kind` is a method of `engine.capture.code.Writer`."""

    kind: str
    target: Any  # what is called or written: a Plan, a function, a node
    arguments: tuple[Any, ...]
    results: tuple[Slot | None, ...]
    line: str  # of the user's code


class Recorder:
    """See the module. `depth` > 0: inside something that is replayed as a whole, so nothing is recorded."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.depth = 0
        self.events: list[Event] = []
        self.modules: dict[Any, None] = {}  # that were called, in order
        self.reason: str | None = None  # why this cannot be captured
        self.explained: set[int] = set()  # arrays (by id) of which a write was recorded
        self.leaves: dict[Any, None] = {}  # AccumulateGrad nodes that ran
        self.consumed: set[int] = set()  # nodes (by id) that a backward has run through
        self.in_backward = False
        self._slots: dict[int, Slot] = {}
        self._numbers: dict[int, Slot] = {}  # residuals that are Python numbers
        self.kept: list[Any] = []
        self._count = 0

    def refuse(self, reason: str) -> None:
        """Notes why this step cannot be captured. The step itself goes on."""
        if self.reason is None:
            self.reason = f"{reason} ({user_line()})"

    # --- arrays -------------------------------------------------------------------------------------------------------

    def new_slot(self, array: Any, residual: bool = False) -> Slot:
        """The slot of an array that was made now."""
        slot = Slot(self._count)
        self._count += 1
        by_identity = self._slots if isinstance(array, np.ndarray | np.generic) else self._numbers
        assert by_identity is self._slots or residual
        by_identity[id(array)] = slot
        self.kept.append(array)
        return slot

    def slot_of(self, array: Any) -> Slot | None:
        """The slot an array is known as."""
        return self._slots.get(id(array))

    def atom(self, value: Any, residual: bool = False) -> Any:
        """What an event says of a raw value that was given to a kernel."""
        if isinstance(value, np.ndarray | np.generic):
            return self._slots.get(id(value)) or self._external(value)
        if residual and value is not None:
            found = self._numbers.get(id(value))
            if found is not None:
                return found
        if type(value) is tuple:
            return Group(tuple, (), tuple(self.atom(each, residual) for each in value))
        return Constant(value)

    def _external(self, array: Any) -> External:
        self.kept.append(array)
        return External(array)

    def results(self, values: Sequence[Any], residuals: int = 0) -> tuple[Slot | None, ...]:
        """Slots of what a call returned; the last `residuals` of it may be any Python objects."""
        public = len(values) - residuals
        return tuple(
            None if value is None else self.new_slot(value, place >= public) for place, value in enumerate(values)
        )

    # --- Tensors ------------------------------------------------------------------------------------------------------

    def tensor(self, tensor: Tensor) -> Any:
        """What an event says of a Tensor."""
        slot = self._slots.get(id(tensor._array))
        return Known(tensor) if slot is None else Wrapped(slot, tensor._spec)

    def structure(self, value: Any, of_tensor: Callable[[Tensor], Any] | None = None) -> Any:
        """What an event says of an argument or a result: nested tuples, lists and dictionaries, Tensors, the rest."""
        kind = type(value)
        if isinstance(value, Tensor):
            return (of_tensor or self.tensor)(value)
        if kind in (tuple, list):
            return Group(kind, (), tuple(self.structure(each, of_tensor) for each in value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return Group(kind, (), tuple(self.structure(each, of_tensor) for each in value))
        if kind is dict:
            return Group(dict, tuple(value), tuple(self.structure(each, of_tensor) for each in value.values()))
        return Constant(value)

    # --- events -------------------------------------------------------------------------------------------------------

    def add(self, kind: str, target: Any, arguments: Sequence[Any], results: tuple[Slot | None, ...] = ()) -> None:
        """Records one event."""
        self.events.append(Event(kind, target, tuple(arguments), results, user_line()))


def user_line() -> str:
    """The first line outside the engine that led here: "train.py:12"."""
    frame: Any = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGES) or frame.f_code.co_filename.startswith("<")
    ):
        frame = frame.f_back
    return "outside any file" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
