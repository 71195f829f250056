"""Where the arrays of a replay lie: small ones that nobody keeps get memory that is allocated once.

Memory is planned by lifetime, as registers are: a buffer is free again after the last event that refers to the array in
it or to any view of that. Arrays that are returned, become a `.grad` or are handed to anything that might keep them get
memory of their own at each replay. So do large ones: allocating them costs nothing that could be measured, and between
steps their memory is better free. 8x16 floats: numpy.tanh takes 0.23 µs into a buffer, 0.30 without.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.calls.straight import Layout
from engine.capture.recorder import Event, Group, Slot, Wrapped

LARGEST = 16 * 1024  # bytes of a buffer
_READERS = frozenset(
    {"operator", "rule", "write", "copy", "fit", "function", "write_at"}
)  # keep no array they are given


class Lifetime(NamedTuple):
    """From the event that makes an array to the last one that refers to its memory."""

    begin: int
    end: int


def slots_in(atom: Any) -> list[int]:
    """Numbers of the slots an event refers to."""
    if isinstance(atom, Slot):
        return [atom.number]
    if isinstance(atom, Wrapped):
        return [atom.slot.number]
    return [number for item in atom.items for number in slots_in(item)] if isinstance(atom, Group) else []


class Buffers:
    """Which slots have a buffer: `take` hands them out in the order of the events."""

    def __init__(self, events: Sequence[Event], result: Any, layouts: Sequence[Layout | None], arguments: int) -> None:
        self._layouts = layouts
        self._lifetimes = _lifetimes(events, result, layouts, arguments)
        self._free: dict[tuple[Any, ...], list[tuple[int, np.ndarray]]] = {}  # (shape, dtype) -> (free after, buffer)

    def take(self, slot: Slot) -> np.ndarray | None:
        """A C-contiguous buffer for the array of a slot; None where it has to be memory of its own."""
        layout = self._layouts[slot.number]
        if layout is None or not layout.fresh or not layout.contiguous or layout.nbytes > LARGEST:
            return None
        lifetime = self._lifetimes.get(layout.memory)
        if lifetime is None:
            return None
        kept = self._free.setdefault((layout.shape, layout.dtype), [])
        for place, (until, buffer) in enumerate(kept):
            if until < lifetime.begin:
                kept[place] = (lifetime.end, buffer)
                return buffer
        buffer = np.empty(layout.shape, layout.dtype)
        kept.append((lifetime.end, buffer))
        return buffer


def _lifetimes(
    events: Sequence[Event], result: Any, layouts: Sequence[Layout | None], arguments: int
) -> dict[int, Lifetime]:
    """Memory -> its lifetime, for memory that nobody but readers refers to."""
    found: dict[int, Lifetime] = {}
    escaped = set(_memory(range(arguments), layouts)) | set(_memory(slots_in(result), layouts))
    for place, event in enumerate(events):
        made = [slot.number for slot in event.results if slot is not None]
        used = [number for atom in event.arguments for number in slots_in(atom)]
        if event.kind not in _READERS:
            escaped.update(_memory([*made, *used], layouts))
        for memory in _memory([*made, *used], layouts):
            found[memory] = Lifetime(found[memory].begin if memory in found else place, place)
    return {memory: lifetime for memory, lifetime in found.items() if memory not in escaped}


def _memory(numbers: Iterable[int], layouts: Sequence[Layout | None]) -> list[int]:
    return [layout.memory for number in numbers if (layout := layouts[number]) is not None]
