"""What a rank says of itself on the page that the others can read: what it waits for, what it has done, where it is."""

import gc
import json
import sys
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

from ddp.watching import progress

Records = Mapping[int, "Record"]
"""By rank."""

_FRAMES = 20  # of a stack, the innermost


class Place(NamedTuple):
    """A frame of a Python stack."""

    file: str
    line: int
    function: str


class Waiting(NamedTuple):
    """What a rank waits for: meeting `number` of a channel (`ddp.watching.progress`) of these ranks."""

    channel: str
    number: int
    label: str
    since: float
    ranks: tuple[int, ...]
    timeout: float
    anybody: bool = False
    """One of them is enough."""


class Record(NamedTuple):
    """What a rank says of itself; times are seconds of one clock. `ranks` are numbers in the world."""

    beat: float
    contributed: Mapping[str, int] | None
    """By channel; None if there is no saying."""
    waiting: Waiting | None
    stack: tuple[Place, ...]
    """Of the main thread, the innermost frame last."""
    ended: str
    """Why there will be nothing more from it, in words: "has ended"; empty while it lives."""


def own_record(left: tuple[str, dict[str, int]] | None) -> Record:
    """Of this rank now. left: why nothing comes from it any more, and what had come, if so."""
    stack = stack_of_main_thread()
    if left is not None:
        ended, contributed = left
        return Record(time.monotonic(), contributed, None, stack, ended)
    wait = progress.current_wait()
    waiting = None
    if wait is not None:
        channel = wait.channel
        waiting = Waiting(
            channel.name, wait.number, wait.label, wait.since, channel.ranks, channel.timeout, channel.anybody
        )
    return Record(time.monotonic(), all_contributed(), waiting, stack, "")


def all_contributed() -> dict[str, int]:
    """What this rank has done, by channel."""
    return {name: channel.contributed for name, channel in progress.channels.copy().items()}


def to_text(record: Record, most: int) -> bytes:
    """For a page of so many bytes: without what it has done, where that does not fit."""
    if record.waiting is not None:
        record = record._replace(waiting=record.waiting._replace(ranks=_runs(record.waiting.ranks)))
    text = json.dumps(record).encode()
    if len(text) > most:  # thousands of channels, of messages between many pairs of ranks
        text = json.dumps(record._replace(contributed=None)).encode()
    return text


def parse(text: bytes) -> Record:
    """What `to_text` gave."""
    beat, contributed, waiting, stack, ended = json.loads(text)
    if waiting is not None:
        waiting = Waiting(*waiting)._replace(ranks=_in_full(tuple(waiting[4])))
    return Record(beat, contributed, waiting, tuple(Place(*place) for place in stack), ended)


@lru_cache(64)
def _runs(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """For each run of consecutive numbers its first one and its length: the ranks themselves would be a page that grows
    with the world, which whoever looks at all pages reads as often as there are ranks.
    """
    found: list[int] = []
    for rank in ranks:
        if found and rank == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += (rank, 1)
    return tuple(found)


@lru_cache(64)
def _in_full(runs: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of these runs, one object for all pages that say the same."""
    return tuple(
        rank for begin, length in zip(runs[::2], runs[1::2], strict=True) for rank in range(begin, begin + length)
    )


# Before Python 3.12 any allocation may collect garbage, that of the objects through which one looks at a running frame
# included; a finalizer then lets the main thread run on, and the memory of its frame is something else's before the
# look is over (python/cpython#106883 is one face of it).
_ALLOCATIONS_COLLECT = sys.version_info < (3, 12)


def stack_of_main_thread() -> tuple[Place, ...]:
    """Its innermost frames."""
    collects = _ALLOCATIONS_COLLECT and gc.isenabled()
    if collects:
        gc.disable()
    try:
        frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
        places: list[Place] = []
        while frame is not None and len(places) < _FRAMES:
            code = frame.f_code
            # Between two lines, where the compiler put an instruction of its own, a frame has none.
            places.append(Place(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name))
            frame = frame.f_back
        return tuple(reversed(places))
    finally:
        if collects:
            gc.enable()
