"""Finds accesses to memory that nothing orders: vector clocks, one a stream and one for the host.

Every piece of work ticks the clock of its stream. An event is a copy of a clock; waiting for it (a stream, or the host)
takes the later of the two clocks in every entry. An access to bytes that another stream wrote before (or read before,
for a write) is ordered only if the accessing stream's clock has reached the other's tick. Work runs at once here, so a
race gives no wrong numbers by itself: it raises `RaceError` and stays in `found` for the end of the test.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

_HERE = os.path.dirname(__file__) + os.sep

Clock = dict[int, int]  # clock of a timeline: which tick of every other timeline it is known to come after

HOST: Clock = {}  # what the host has waited for: one clock for all threads of the process
found: list[str] = []


class RaceError(AssertionError):
    """Two accesses to the same memory that no event or synchronisation orders."""


@dataclass(slots=True)
class Access:
    """A read or write of the bytes [start, stop) of one block."""

    start: int
    stop: int
    timeline: int
    tick: int
    what: str


class History:
    """The accesses to one block of memory that later ones may have to wait for."""

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: list[Access] = []
        self.writes: list[Access] = []

    def seen(self) -> list[Access]:
        """The writes that others may still have to wait for, at addresses of this process."""
        return self.writes

    def access(self, start: int, stop: int, write: bool, clock: Clock, timeline: int, what: str) -> None:
        """Checks one access against those before, and remembers it.

        Raises: RaceError.
        """
        if stop <= start:
            return
        for before in self.writes:
            if before.start < stop and start < before.stop and clock.get(before.timeline, 0) < before.tick:
                _report(before, "wrote", what, write)
        if write:
            for before in self.reads:
                if before.start < stop and start < before.stop and clock.get(before.timeline, 0) < before.tick:
                    _report(before, "read", what, write)
            self.reads = [each for each in self.reads if each.start < start or each.stop > stop]
            self.writes = [each for each in self.writes if each.start < start or each.stop > stop]
            self.writes.append(Access(start, stop, timeline, clock[timeline], what))
        else:
            self.reads = [
                each for each in self.reads if each.timeline != timeline or each.start < start or each.stop > stop
            ]
            if len(self.reads) > 50:  # everything queued from now on comes after what the host has waited for
                self.reads = [each for each in self.reads if HOST.get(each.timeline, 0) < each.tick]
            self.reads.append(Access(start, stop, timeline, clock[timeline], what))


def _report(before: Access, did: str, what: str, write: bool) -> None:
    text = f"race: {what} {'writes' if write else 'reads'} memory that {before.what} {did}, and no event orders them"
    found.append(text)
    raise RaceError(text)


def report(text: str) -> None:
    """Records a misuse found elsewhere and raises it.

    Raises: RaceError.
    """
    found.append(text)
    raise RaceError(text)


def join(clock: Clock, other: Clock) -> None:
    """`clock` comes after everything `other` comes after."""
    for timeline, tick in other.items():
        if clock.get(timeline, 0) < tick:
            clock[timeline] = tick


def reached(clock: Clock, other: Clock) -> bool:
    """Whether `clock` comes after everything `other` comes after."""
    return all(clock.get(timeline, 0) >= tick for timeline, tick in other.items())


def place() -> str:
    """File and line outside of this package from which the device was called."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
