"""Ranks that are threads and take turns: one runs until it has to wait for another.

What belongs to a rank (its default group, its channels, ...) lies in variables of modules. With the turn they are
exchanged, as an operating system does with registers, so none of that code knows of threads, and it costs nothing where
there are none.
"""

import copy
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

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
_DICTIONARIES: list[dict[Any, Any]] = [
    progress.channels,
    under_way,
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


class Turns:
    """Who runs, and who waits for what. `timeout`: seconds for all of it."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.results: list[Any] = [None] * size
        self.error: BaseException | None = None  # of the rank that failed first
        self.over = threading.Event()  # every rank has ended
        self._deadline = time.monotonic() + timeout
        self._live = set(range(size))
        self._may_run = [threading.Semaphore(0) for _ in range(size)]
        self._waiting: dict[int, str] = {}  # by rank: in which call, and where
        self._looks = 0  # since anybody has gone on
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
            for thread in self._threads:
                thread.start()
            self._may_run[0].release()
            if not self.over.wait(self.timeout + 1.0):
                self._abandoned = True
                self.error = RuntimeError(f"run_ranks: not over after {self.timeout:g} s: {self._where_all_are()}")
        finally:
            outside.enter()
        if self.error is not None:
            raise self.error
        return self.results

    def wait(self, rank: int, ready: Callable[[], bool], label: str) -> None:
        """Returns when `ready()`; the others run meanwhile. Raises RuntimeError where that can never be."""
        self._check_going_on()
        if ready():
            return
        self._waiting[rank] = f"{label} ({calling_line()})"
        while not ready():
            self._looks += 1
            if self._looks > len(self._live):
                raise RuntimeError(f"the ranks wait for each other, and that would never end: {self._who_waits()}")
            self._pass_on(rank)
        del self._waiting[rank]
        self._looks = 0

    def look(self, rank: int) -> None:
        """The rank looks whether something has come, and will look again: the others run meanwhile."""
        self._check_going_on()
        self._looks = 0  # it may do something else in between
        self._pass_on(rank)

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
        self._looks = 0
        if self._abandoned:
            return  # nobody may touch the variables now
        if self._live:
            self._may_run[self._next(rank)].release()
        else:
            self.over.set()

    def _pass_on(self, rank: int) -> None:
        if time.monotonic() > self._deadline:
            raise RuntimeError(f"run_ranks: not over after {self.timeout:g} s: {self._who_waits()}")
        following = self._next(rank)
        if following != rank:
            state = State()
            self._may_run[following].release()
            self._may_run[rank].acquire()
            state.enter()
        self._check_going_on()

    def _next(self, rank: int) -> int:
        """The rank after this one that has not ended."""
        return min(self._live, key=lambda other: (other - rank - 1) % self.size)

    def _check_going_on(self) -> None:
        if self.error is not None:
            raise Ended

    def _who_waits(self) -> str:
        ended = sorted(set(range(self.size)) - self._live)
        found = [f"rank {rank} in {what}" for rank, what in sorted(self._waiting.items())]
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
