"""The recorder: what a step does to raw arrays, in order, as a list of events.

Arrays are known by identity while they live, and held weakly, so that a recorded step needs no more memory than an
ordinary one. One that a recorded call returned, or that is an argument, is a *slot*: at a replay, the variable that
holds what that call returns then. Any other was there before: *external* memory, parameters and buffers above all,
which a replay reads where it is. Whether that is true of an array is decided by recording twice
(`engine.capture.comparison`).
"""

import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from threading import get_ident
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from numpy.lib.array_utils import byte_bounds

import engine
from engine.autograd.versions import VersionCounter
from engine.calls.straight import Layout
from engine.capture.options import Options
from engine.memory import backend
from engine.rules.spec import Spec
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


class Offer(NamedTuple):
    """The memory that a leaf offers for its gradient (`engine.autograd.accumulate.offered`)."""

    leaf: Any


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
    """See the module. `depth` > 0: inside something that is replayed as a whole, so nothing is recorded.

    counters: the version counters of the arguments.
    """

    def __init__(self, counters: Sequence[VersionCounter]) -> None:
        self.thread = get_ident()
        self.counters = {id(counter): place for place, counter in enumerate(counters)}  # which live as the arguments do
        self.options = Options()
        self.depth = 0
        self.events: list[Event] = []
        self.modules: dict[Any, None] = {}  # that were called, in order
        self.passing: set[tuple[int, str]] = set()  # attributes of modules (by id) that effects set
        self.reason: str | None = None  # why this cannot be captured
        self.explained: set[int] = set()  # arrays (by id) of which a write was recorded
        self.leaves: dict[Any, None] = {}  # AccumulateGrad nodes that ran
        self.consumed: set[int] = set()  # nodes (by id) that a backward has run through
        self.in_backward = False
        self.devices: set[Any] = set()  # that operators ran on
        self._slots: dict[int, Slot] = {}
        self._residuals: dict[int, Slot] = {}  # residuals that are no arrays: numbers, lists
        self._held: dict[int, Any] = {}  # those and NumPy's scalars, which cannot be held weakly
        self._living: dict[int, ref[np.ndarray]] = {}  # arrays of slots, and owners of their memory
        self.layouts: list[Layout | None] = []  # of each slot; None where it is no array
        self._memory: dict[int, tuple[int, int, int]] = {}  # owner (by id) -> number, first and last address
        self._memories = count()

    def check_devices(self) -> None:
        """Refuses a step that computes in host memory and on a GPU, or on several."""
        kinds = {where.type for where in self.devices}
        if len(kinds) > 1:
            self.refuse(
                "the step computes both in host memory and on a GPU: move its inputs to the GPU before it, and its "
                "results back after it"
            )
        elif len(self.devices) > 1:
            self.refuse("the step computes on several GPUs, and a CUDA graph belongs to one")

    @property
    def gpu(self) -> int | None:
        """The GPU that operators ran on; None for host memory."""
        return next((where.index for where in self.devices if where.index is not None), None)

    def check_options(self) -> None:
        """Refuses a step that writes options of an optimizer itself."""
        name = self.options.changed()
        if name is not None:
            self.refuse(
                f"the step sets option {name!r} of an optimizer, which a replay would not do again; set it before the "
                "step, or use a scheduler"
            )

    def refuse(self, reason: str) -> None:
        """Notes why this step cannot be captured. The step itself goes on."""
        if self.reason is None:
            self.reason = f"{reason} ({user_line()})"

    def living(self) -> list[np.ndarray]:
        """Arrays of slots that somebody holds, and the owners of their memory."""
        return [array for weak in list(self._living.values()) if (array := weak()) is not None]

    def drop(self, residual: Any) -> None:
        """Lets go of a residual that nobody needs any more."""
        if id(residual) in self._residuals:
            del self._residuals[id(residual)], self._held[id(residual)]

    def close(self) -> None:
        """Lets go of everything but the events."""
        for known in (self._slots, self._residuals, self._held, self._living, self._memory):
            known.clear()

    def _watch(self, array: np.ndarray) -> None:
        """Forgets an array when it dies: its id may be that of another one then."""
        number = id(array)
        if number not in self._living:

            def forget(_: Any) -> None:
                for known in (self._living, self._slots, self._memory):
                    known.pop(number, None)

            self._living[number] = ref(array, forget)

    # --- arrays -------------------------------------------------------------------------------------------------------

    def new_slot(self, array: Any, residual: bool = False) -> Slot:
        """The slot of an array that was made now."""
        slot = Slot(len(self.layouts))
        self.layouts.append(self.layout(array) if isinstance(array, np.ndarray) else None)
        on_gpu = backend.is_on_gpu(array)
        by_identity = self._slots if on_gpu or isinstance(array, np.ndarray | np.generic) else self._residuals
        assert by_identity is self._slots or residual
        by_identity[id(array)] = slot
        if on_gpu or isinstance(array, np.ndarray):
            self._watch(array)
        else:
            self._held[id(array)] = array
        return slot

    def layout(self, array: np.ndarray) -> Layout:
        """How an array lies in memory."""
        contiguous = array.flags.c_contiguous
        return Layout(
            array.shape, array.strides, array.dtype, contiguous, array.base is None, self._memory_number(array)
        )

    def _memory_number(self, array: np.ndarray) -> int:
        """The number of the memory that an array looks into."""
        owner = memory_chain(array)[-1]
        known = self._memory.get(id(owner))
        if known is not None:
            return known[0]
        low, high = byte_bounds(owner)
        # A view may have lost the trace of whose memory it looks into: compiled kernels return such.
        shared = [] if owner.base is None else [n for n, a, b in self._memory.values() if low < b and a < high]
        number = shared[0] if shared else next(self._memories)
        self._memory[id(owner)] = (number, low, high)
        self._watch(owner)
        return number

    def slot_of(self, array: Any) -> Slot | None:
        """The slot an array is known as."""
        return self._slots.get(id(array))

    def atom(self, value: Any, residual: bool = False) -> Any:
        """What an event says of a raw value that was given to a kernel."""
        if isinstance(value, np.ndarray | np.generic) or backend.is_on_gpu(value):
            return self._slots.get(id(value)) or External(value)
        if residual and value is not None:
            found = self._residuals.get(id(value))
            if found is not None:
                return found
        if type(value) is tuple:
            return Group(tuple, (), tuple(self.atom(each, residual) for each in value))
        return Constant(value)

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

    def inside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls what is replayed as a whole."""
        self.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.depth -= 1

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


def memory_chain(array: np.ndarray) -> list[np.ndarray]:
    """An array, what it is a view of, what that is a view of, and so on; the last one owns the memory."""
    chain: list[np.ndarray] = []
    found: Any = array
    while found is not None:
        if isinstance(found, np.ndarray) or backend.is_on_gpu(found):
            chain.append(found)
        # views made from an array interface (numpy's as_strided, engine.memory.backend) name what they keep alive
        found = found.base if hasattr(found, "base") else getattr(found, "owner", None)
    return chain
