"""Ranks that are threads and take turns: one runs until it has to wait for another.

Whoever waits is told when what it waits for happens, so a turn costs the same however many ranks there are. Each rank
has a clock, and the one that is furthest behind goes on; of several, the one that has waited longest. The clocks stand
still, and ranks take turns in a circle, unless something moves them on (`ddp.forecast.virtual_time`).

What belongs to a rank (its default group, its channels, ...) lies in variables of modules. With the turn they are
exchanged, as an operating system does with registers, so none of that code knows of threads, and it costs nothing where
there are none.
"""

import copy
import heapq
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, MutableMapping
from itertools import count
from typing import Any, NamedTuple

from ddp.collectives import attendance
from ddp.execution import leaving
from ddp.execution.calls import calling_line
from ddp.gradients import listening
from ddp.groups import group
from ddp.transport.under_way import under_way
from ddp.watching import progress
from ddp.world import bootstrap
from ddp.world.ranks import name_ranks
from engine.random import default_generator

# Of a rank: variables that are assigned, and dictionaries and lists that are changed in place.
_VARIABLES: list[tuple[Any, str]] = [(bootstrap, "_world"), (group, "_default")]
_DICTIONARIES: list[MutableMapping[Any, Any]] = [
    progress.channels,
    under_way,
    listening.reducers,
    vars(default_generator),
]
_LISTS: list[list[Any]] = [listening._running, attendance._on_their_way, leaving._left]


class Ended(BaseException):
    """Raised in a rank where another one has failed; no Exception, so that nobody takes it for an own one."""


class State:
    """What belongs to a rank while it has not the turn."""

    def __init__(self) -> None:
        """That of now."""
        self.variables = [getattr(owner, name) for owner, name in _VARIABLES]
        self.dictionaries = [dict(one) for one in _DICTIONARIES]
        self.lists = [list(one) for one in _LISTS]

    @staticmethod
    def fresh(generator: dict[str, Any]) -> "State":
        """That of a rank at its beginning, with this random generator."""
        state = State()
        state.variables = [None, None]
        state.dictionaries = [{} for _ in _DICTIONARIES]
        state.dictionaries[-1] = copy.deepcopy(generator)
        state.lists = [[] for _ in _LISTS]
        return state

    def enter(self) -> None:
        """Puts it in place."""
        for (owner, name), value in zip(_VARIABLES, self.variables, strict=True):
            setattr(owner, name, value)
        for one, kept in zip(_DICTIONARIES, self.dictionaries, strict=True):
            one.clear()
            one.update(kept)
        for each, items in zip(_LISTS, self.lists, strict=True):
            each[:] = items


class Waiting(NamedTuple):
    """What a rank waits for. when: at which time that happens; None while others have to do something first."""

    when: Callable[[], float | None]
    label: str


class Turns:
    """Who runs, and who waits for what. `timeout`: seconds for all of it."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.clocks = [0.0] * size
        self.results: list[Any] = [None] * size
        self.error: BaseException | None = None  # of the rank that failed first
        self.over = threading.Event()  # every rank has ended
        self._deadline = time.monotonic() + timeout
        self._live = set(range(size))
        self._may_run = [threading.Semaphore(0) for _ in range(size)]
        self._waiting: dict[int, Waiting] = {}
        self._numbers = count()
        self._queue: list[tuple[float, int, int]] = []  # a heap of who can go on: from which time, number, rank
        self._places: dict[int, tuple[float, int, int]] = {}  # of each rank in there, the one that counts
        self._abandoned = False  # `run` waits no more
        self._threads: list[threading.Thread] = []

    def run(self, begin: Callable[[int], None], function: Callable[[], Any]) -> list[Any]:
        """What `function` returns on each rank, after `begin(rank)`. Raises what a rank raises, with a note."""
        outside = State()
        generator = dict(vars(default_generator))
        self._threads = [
            threading.Thread(
                target=self._rank,
                args=(rank, State.fresh(generator), begin, function),
                name=f"rank {rank}",
                daemon=True,  # one that never ends must not keep the process
            )
            for rank in range(self.size)
        ]
        try:
            for rank, thread in enumerate(self._threads):
                self._put(rank, 0.0)
                thread.start()
            self._may_run[self._take()].release()
            if not self.over.wait(self.timeout + 1.0):
                self._abandoned = True
                self.error = RuntimeError(f"run_ranks: not over after {self.timeout:g} s: {self._where_all_are()}")
        finally:
            outside.enter()
        if self.error is not None:
            raise self.error
        return self.results

    def wait(self, rank: int, when: Callable[[], float | None], label: str) -> None:
        """Returns at the time `when()`; the others run meanwhile. Raises RuntimeError where that can never be."""
        self._check_going_on()
        time_ = when()
        if time_ is not None and time_ <= self.clocks[rank]:
            return
        self._waiting[rank] = Waiting(when, f"{label} ({calling_line()})")
        if time_ is not None:
            self._put(rank, time_)
        try:
            if self._places:
                self._pass_on(rank)
            if when() is None:  # nobody can go on; or nobody could, so that the rank that ended last woke this one
                raise RuntimeError(f"the ranks wait for each other, and that would never end: {self._who_waits()}")
        finally:
            del self._waiting[rank]

    def look(self, rank: int) -> None:
        """The rank looks whether something has come, and will look again: the others run meanwhile."""
        self._check_going_on()
        self._put(rank, self.clocks[rank])
        self._pass_on(rank)

    def tell(self, ranks: Iterable[int]) -> None:
        """What these ranks wait for may have happened."""
        for rank in ranks:
            if rank in self._waiting:
                time_ = self._waiting[rank].when()
                if time_ is not None and (rank not in self._places or time_ < self._places[rank][0]):
                    self._put(rank, time_)

    def _rank(self, rank: int, state: State, begin: Callable[[int], None], function: Callable[[], Any]) -> None:
        self._may_run[rank].acquire()
        state.enter()
        try:
            if self.error is None:
                begin(rank)
                self.results[rank] = function()
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            if self.error is None:
                error.add_note(f"raised by rank {rank} of {self.size}")
                self.error = error
        self._live.discard(rank)
        self._places.pop(rank, None)
        if self._abandoned:
            return  # nobody may touch the variables now
        if not self._live:
            self.over.set()
            return
        if self.error is not None or not self._places:  # those that wait are to raise, all or one of them
            for other in sorted(self._waiting) if self.error is not None else [min(self._waiting)]:
                self._put(other, self.clocks[other])
        self._may_run[self._take()].release()

    def _put(self, rank: int, time_: float) -> None:
        """The rank can go on at this time, and at no other."""
        place = self._places[rank] = max(time_, self.clocks[rank]), next(self._numbers), rank
        heapq.heappush(self._queue, place)

    def _take(self) -> int:
        """The rank that goes on."""
        while True:
            time_, _, rank = place = heapq.heappop(self._queue)
            if self._places.get(rank) == place:
                del self._places[rank]
                self.clocks[rank] = time_
                return rank

    def _pass_on(self, rank: int) -> None:
        if time.monotonic() > self._deadline:
            raise RuntimeError(f"run_ranks: not over after {self.timeout:g} s: {self._who_waits()}")
        following = self._take()
        if following != rank:
            state = State()
            self._may_run[following].release()
            self._may_run[rank].acquire()
            state.enter()
        self._check_going_on()

    def _check_going_on(self) -> None:
        if self.error is not None:
            raise Ended

    def _who_waits(self) -> str:
        ended = sorted(set(range(self.size)) - self._live)
        found = [f"rank {rank} in {waiting.label}" for rank, waiting in sorted(self._waiting.items())]
        running = sorted(self._live - self._waiting.keys())
        found += [f"{name_ranks(running)} elsewhere"] if running else []
        found += [f"{name_ranks(ended)} at the end"] if ended else []
        return ", ".join(found)

    def _where_all_are(self) -> str:
        """With the stack of the rank that has the turn: it does not give it away."""
        frames = sys._current_frames()
        stacks = [
            f"rank {rank}:\n{''.join(traceback.format_stack(frames[thread.ident])[-8:])}"
            for rank, thread in enumerate(self._threads)
            if rank not in self._waiting and thread.ident in frames
        ]
        return f"{self._who_waits()}\n{''.join(stacks)}"
