"""How a collective goes from its call to its result: the ranks compare their calls, bytes move, results are written.

On one node what is compared goes through memory that all ranks see, and the bytes beside it and in further rounds
(`ddp.execution.in_memory`).

Over MPI comparing is one small `Iallreduce` (`ddp.execution.calls`), posted at the call; the bytes follow when it is
through. It is nonblocking because a rank may say `async_op` where another does not. Where none does, the bytes take
MPI's blocking calls, which are faster: every rank is in its call then, so nobody waits for something else. Comparisons
and bytes have communicators of their own, on which everything is posted in the order of the calls.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

import engine
from ddp.execution import calls
from ddp.execution.calls import Account, Call
from ddp.execution.in_memory import MessagesInMemory
from ddp.execution.lines import Lines
from ddp.execution.messages import Messages
from ddp.execution.work import Work
from ddp.transport.under_way import under_way
from ddp.world.ranks import name_ranks
from engine.calls.effects import unreplayable

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.groups.process_group import ProcessGroup
    from ddp.transport.room import Room

_OVER = object()


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
        super().__init__(call.name, results)
        self._lines = lines
        self._call = call
        self._move = move
        self._finish = finish
        self._messages: Messages | None = None
        self._place = calls.calling_line() if async_op else ""
        self._alike, balance = calls.digest(call, lines.group.rank)
        self._words = self._alike, balance
        self.check: MPI.Request | None = None
        self._rounds: Iterator[None] = iter(())
        if lines.checks is not None:
            self._sums = np.array((*self._words, async_op), np.uint64)
            comparison = Messages(lines.checks, blocking=False)
            comparison.combine(self._sums, "SUM")
            (self.check,) = comparison.requests
        elif lines.room is not None:
            self._rounds = self._go_through(lines.room)
        self._channel = lines.group.channel
        self._number = self._channel.contribute()
        lines.checking.append(self)
        under_way[id(lines)] = lines
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
        messages.begin(self._words)
        while not room.is_filled():
            yield
        alike = balance = 0
        for words in room.words():
            alike, balance = alike + words[0], balance + words[1]
        if self._compare(alike, balance):
            yield from messages.go_on()
            self._take_over(messages)

    def start_moving(self) -> None:
        """Over MPI, the calls are known: compare them and post the messages."""
        if self.check is None:
            return
        alike, balance, asynchronous = self._sums.tolist()
        if self._compare(alike, balance) and self._move is not None:
            messages = Messages(self._lines.bytes, blocking=not asynchronous)
            self._move(messages)
            self._take_over(messages)

    def _take_over(self, messages: Messages) -> None:
        self._messages, self._requests = messages, messages.requests

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
                if self._messages is not None:
                    self._messages.unpack()
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
        self._move = self._finish = self._messages = None


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
