"""Work: the handle of a collective or message under way, and how a collective goes from its call to its result.

First the ranks compare their calls, then bytes move, then results are written. On one node both go through memory that
all ranks see (`ddp.execution.in_memory`): what is compared lies beside the first bytes.

Over MPI comparing is one small `Iallreduce` (`ddp.execution.calls`), posted at the call; the bytes follow when it is
through. It is nonblocking because a rank may say `async_op` where another does not. Where none does, the bytes take
MPI's blocking calls, which are faster: every rank is in its call then, so nobody waits for something else. Comparisons
and bytes have communicators of their own, on which everything is posted in the order of the calls.

Either makes progress only while somebody calls it, so whoever waits moves all collectives under way on, of all groups:
ranks may wait in different orders.
"""

import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

import engine
from ddp import losses
from ddp.execution import calls
from ddp.execution.calls import Account, Call
from ddp.execution.futures import Future
from ddp.execution.in_memory import NOTHING, MessagesInMemory
from ddp.execution.leaving import free_settled, leave
from ddp.execution.messages import Messages
from ddp.transport.pausing import pause
from ddp.watching.progress import Channel, begin_wait, end_wait
from ddp.world.bootstrap import default_world
from ddp.world.ranks import name_ranks
from engine.capture.effects import unreplayable

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.groups.process_group import ProcessGroup
    from ddp.transport.room import Room

logger = logging.getLogger("ddp")

_OVER = object()
_LOOKS_BETWEEN = 64  # at a room, before MPI is given a chance to see its own messages off
_POLL = 50e-6  # seconds between looks where a wait has a timeout of its own


class Work:
    """Something under way. It is over, well or badly, when `is_completed` says so; made by `async_op=True`."""

    def __init__(self, label: str, results: list[engine.Tensor]) -> None:
        self._label = label
        self._results = results
        self._channel: Channel | None = None  # where it is waited for, and for which meeting
        self._number = 0
        self._requests: list[MPI.Request] = []
        self._error: BaseException | None = None
        self._over = False

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._over:
            self._advance()
        return self._over

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error with which it has ended, if any."""
        return self._error

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Blocks until the result is there.

        Raises the error with which it ended; RuntimeError when `timeout` is over before, and it goes on nevertheless.
        """
        if not self._over:
            assert self._channel is not None
            begin_wait(self._channel, self._number, self._label)
            try:
                self._wait(timeout)
            finally:
                end_wait()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait`: results are in host memory."""
        self.wait()

    def result(self) -> list[engine.Tensor]:
        """The tensors that hold the result. Raises RuntimeError before it is there."""
        if not self.is_success():
            raise RuntimeError(f"{self._label}: it has no result yet; call wait()")
        return self._results

    def source_rank(self) -> int:
        """Of a message that was received: the sender's number in the world."""
        raise RuntimeError(f"{self._label}: source_rank is for messages that were received")

    def _source_rank(self) -> int:
        """The same, in the name that PyTorch's tests and old scripts use."""
        return self.source_rank()

    def get_future(self) -> "Future[list[engine.Tensor]]":
        """The future of the result, a list of tensors."""

        def compute() -> list[engine.Tensor]:
            self.wait()
            return self._results

        return Future(compute, self.is_completed)

    def _wait(self, timeout: datetime.timedelta | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self._advance()
        looks = 0
        while not self._over:
            room = next((lines.room for lines in _busy.values() if lines.checking and lines.room), None)
            if deadline is None and room is not None:
                looks += 1
                pause(looks, room.spins)
                if looks % _LOOKS_BETWEEN == 0:
                    room.comm.Iprobe()
            elif deadline is None:
                _block_until_something_happens(self._requests)
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{self._label}: Wait timeout: it was not complete after {timeout}")
            else:
                time.sleep(_POLL)
            self._advance()

    def _advance(self) -> None:
        """Do what has become possible, for everything under way; never blocks."""
        for lines in tuple(_busy.values()):
            lines.advance()

    def _end(self, error: BaseException | None = None) -> None:
        self._over = True
        self._error = error
        self._requests = []


class Lines:
    """What the collectives of a group go over: a room where its ranks share memory, else MPI; and those under way.

    Making one is collective, so it belongs to the making of the group: by the first collective it would wait for the
    other ranks there, whatever that one's `async_op` and timeout say. It costs 0.1 ms (2 ranks, one node).
    """

    def __init__(self, group: "ProcessGroup") -> None:
        assert group.comm is not None
        free_settled()
        self.group = group
        self.bytes = group.comm.Dup()
        self.words = group.comm.Dup()
        self.room = None if group.transport_name == "mpi" else _enter_room(self.bytes)
        self.checks = group.comm.Dup() if self.room is None else None
        self.checking: deque[Collective] = deque()
        self.moving: list[Collective] = []
        self._has_left = False

    def advance(self) -> None:
        """See `Work._advance`."""
        while self.checking and self.checking[0].is_checked():
            work = self.checking.popleft()
            work.start_moving()
            self.moving.append(work)
        self.moving = [work for work in self.moving if not work.has_moved()]
        if not self.checking and not self.moving:
            _busy.pop(id(self), None)
            if self._has_left and self.room is not None:
                self.room.close()

    def requests(self) -> "list[MPI.Request]":
        """What has to happen in MPI before `advance` can do more."""
        found = [request for work in self.moving for request in work._requests]
        first = self.checking[0].check if self.checking else None
        return found if first is None else [first, *found]

    def abandon(self) -> None:
        """What is under way will never end: a rank is lost."""
        _busy.pop(id(self), None)

    def leave(self) -> None:
        """Collective, but waits for nobody: the group's communicators are not used any more. What is under way goes on:
        other ranks may come to it.
        """
        assert self.group.comm is not None
        self._has_left = True
        if self.room is not None and not self.checking and not self.moving:
            self.room.close()
        checks = () if self.checks is None else (self.checks,)
        comms = self.words, *checks, self.bytes, self.group.comm
        leave(comms, len(self.checking) + len(self.moving), self.group.unsettled)


def _enter_room(comm: "MPI.Intracomm") -> "Room | None":
    """Collective: memory of all these ranks, where they are on one node and can share some."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or losses.watching() is not None:
        return None  # ranks that are threads, of `ddp.testing`; or that may be lost, which MPI tells those that wait
    from ddp.transport.nodes import count_nodes
    from ddp.transport.room import Room

    world = default_world()
    if world.local_size < world.size and count_nodes(comm) > 1:
        return None
    try:
        return Room(comm)
    except RuntimeError as error:
        logger.warning("collectives go through MPI: %s", error)
        return None


_busy: dict[int, Lines] = {}  # by id, those with something under way


class Collective(Work):
    """A collective of several ranks under way: see the module, and `run`."""

    def __init__(
        self,
        lines: Lines,
        call: Call,
        move: Callable[[Messages], None] | None,
        finish: Callable[[], None] | None,
        results: list[engine.Tensor],
        async_op: bool,
    ) -> None:
        from mpi4py import MPI

        super().__init__(call.name, results)
        self._lines = lines
        self._call = call
        self._move = move
        self._finish = finish
        self._place = calls.calling_line() if async_op else ""
        self._alike, balance = calls.digest(call, lines.group.rank)
        self._words = self._alike, balance, int(async_op)
        self.check: MPI.Request | None = None
        self._rounds: Iterator[None] = iter(())
        if lines.checks is not None:
            self._sums = np.array(self._words, np.uint64)
            self.check = lines.checks.Iallreduce(MPI.IN_PLACE, self._sums)
        elif lines.room is not None:
            self._rounds = self._go_through(lines.room)
        self._channel = lines.group.channel
        self._number = self._channel.contribute()
        lines.checking.append(self)
        _busy[id(lines)] = lines
        if lines.room is not None:
            lines.advance()  # what is compared is laid down at the call, where nothing is before it

    def is_checked(self) -> bool:
        """Whether all ranks have made their call; and, where there is a room, have gone through it."""
        if self.check is not None:
            return self.check.Test()
        try:
            return next(self._rounds, _OVER) is _OVER
        except BaseException as error:
            assert self._lines.room is not None
            self._lines.room.stop(error)
            self._end(error)
            raise

    def _go_through(self, room: "Room") -> Iterator[None]:
        """Gives None whenever others have to be waited for."""
        messages = MessagesInMemory(room, self._lines.bytes)
        if self._move is not None:
            self._move(messages)
        rounds = messages.rounds()
        room.lay_down(next(rounds, NOTHING), self._words)
        while not room.is_filled():
            yield
        alike, balance, asynchronous = map(sum, zip(*room.words(), strict=True))
        if not self._compare(alike, balance):
            return
        for part in rounds:
            room.lay_down(part)
            while not room.is_filled():
                yield
        messages.post(blocking=not asynchronous)
        self._requests = messages.requests

    def start_moving(self) -> None:
        """Over MPI, the calls are known: compare them and post the messages."""
        if self.check is None:
            return
        alike, balance, asynchronous = self._sums.tolist()
        if self._compare(alike, balance) and self._move is not None:
            messages = Messages(self._lines.bytes, blocking=not asynchronous)
            self._move(messages)
            self._requests = messages.requests

    def _compare(self, alike: int, balance: int) -> bool:
        """Whether the calls fit together, by sums over all ranks; if they do not, this is over."""
        if (alike - self._alike * self._lines.group.size()) % calls.MODULUS == 0 == balance % calls.MODULUS:
            return True
        self._end(self._find_difference())
        return False

    def has_moved(self) -> bool:
        """Whether all bytes are there; if so, the result is written now."""
        if not self._over and all(request.Test() for request in self._requests):
            error: Exception | None = None
            try:
                if self._finish is not None:
                    self._finish()
            except Exception as raised:  # noqa: BLE001 - whatever it is, `wait` of this work raises it
                error = raised
            self._end(error)
        return self._over

    def _find_difference(self) -> Exception:
        """Collective: what is different between the ranks' calls."""
        with self._lines.group.meeting("the comparison of calls that do not fit together"):
            accounts = self._lines.words.allgather(Account(self._call, self._place or calls.calling_line()))
        error = calls.explain(accounts)
        ranks = self._lines.group.ranks
        if ranks != tuple(range(len(ranks))):
            return type(error)(f"{error}; ranks are counted in a group, which in the world are {name_ranks(ranks)}")
        return error

    def _end(self, error: BaseException | None = None) -> None:
        super()._end(error)
        self._move = self._finish = None


@unreplayable
def run(
    group: "ProcessGroup",
    call: Call,
    move: Callable[[Messages], None] | None = None,
    finish: Callable[[], None] | None = None,
    results: list[engine.Tensor] | None = None,
    async_op: bool = False,
) -> Work | None:
    """Collective: make the call. Returns a Work where `async_op` is set, else None, when the result is there.

    move: posts the messages. finish: what is left to do when they are there. With one rank only `finish` is called.
    Raises, on every rank, ValueError or RuntimeError when the ranks' calls do not fit together
    (`ddp.execution.calls.explain`); of an `async_op`, its `wait` does.
    """
    if group.comm is None or group.size() == 1:
        work = Work(call.name, results or [])
        if finish is not None:
            finish()
        work._end()
        return work if async_op else None
    assert group.lines is not None
    work = Collective(group.lines, call, move, finish, results or [], async_op)
    if async_op:
        return work
    work.wait()
    return None


def _block_until_something_happens(own: "list[MPI.Request]") -> None:
    """Wait inside MPI, where all requests make progress and where the user's mpi_yield_when_idle rules."""
    requests = [*own, *(request for lines in _busy.values() for request in lines.requests())]
    once = list({id(request): request for request in requests}.values())  # as MPI wants it
    once[0].Waitany(once)
