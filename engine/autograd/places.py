"""Where on a GPU a node's forward ran: the device and the stream. Its backward runs there, too.

Nodes of the CPU have no place, and a process without a GPU never comes here: `in_use` is False until the first
recorded call on a GPU.
"""

from typing import Any
from weakref import WeakValueDictionary

from engine.memory import backend
from engine.memory.blocks import record_stream, was_allocated_here
from engine.tensor import Tensor

in_use = False


class Place:
    """A stream of CuPy's on one GPU. The same stream is the same object as long as somebody holds it."""

    __slots__ = ("__weakref__", "index", "raw")

    def __init__(self, index: int, raw: Any) -> None:
        self.index = index
        self.raw = raw

    def __repr__(self) -> str:
        return f"<stream {self.raw.ptr:#x} of cuda:{self.index}>"


_known: "WeakValueDictionary[tuple[int, int], Place]" = WeakValueDictionary()
_last: Place | None = None


def current_place(index: int) -> Place:
    """The stream that is current on this thread for the GPU `index`."""
    global in_use, _last
    raw = backend.require_cupy().cuda.get_current_stream(index)
    last = _last
    if last is not None and last.raw is raw and last.index == index:
        return last
    in_use = True
    found = _known.get((index, raw.ptr))
    if found is None:
        found = _known[index, raw.ptr] = Place(index, raw)
    _last = found
    return found


def event_after(place: Place) -> Any:
    """An event after all work that a stream has now."""
    cuda = backend.require_cupy().cuda
    before = cuda.runtime.getDevice()
    if before != place.index:
        cuda.runtime.setDevice(place.index)
    try:
        event = cuda.Event(disable_timing=True)
        event.record(place.raw)
    finally:
        if before != place.index:
            cuda.runtime.setDevice(before)
    return event


def used_on(gradient: Any, place: Place) -> None:
    """A gradient is used on another stream than it was allocated on: its memory must not be given away before that.

    Memory that somebody else owns (a window that another process shares) is for them to keep.
    """
    array = gradient._array if isinstance(gradient, Tensor) else gradient
    if backend.is_on_gpu(array) and was_allocated_here(array):
        record_stream(array, place.raw)


class at:
    """Context manager: another stream than the current one is current inside, and its GPU the one in use."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def __enter__(self) -> None:
        cuda = backend.require_cupy().cuda
        self.index = cuda.runtime.getDevice()
        if self.index != self.place.index:
            cuda.runtime.setDevice(self.place.index)
        self.raw = cuda.get_current_stream(self.place.index)
        self.place.raw.use()

    def __exit__(self, *_: object) -> None:
        self.raw.use()
        if self.index != self.place.index:
            backend.require_cupy().cuda.runtime.setDevice(self.index)
