"""Sums that go along a chain of ranks, one of each group, and results that come back.

The chain is what keeps the order of summation where groups of ranks add up what they have: the first sends the sum of
its ranks to the second, which adds its own ranks, and so on; the last one has the result, and it travels back the same
way. Sums go one way while results come the other way, so between two groups what is summed crosses the link once in
each direction.

Messages are matched by the order in which they are posted, so what is summed goes through the chain in the same order
on all its ranks. All requests are nonblocking and move on by `move`.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from mpi4py import MPI
from numpy.typing import NDArray

_FORWARD, _BACK = 1, 2  # tags


class Counting(Protocol):
    """What is not done before all its messages have gone. remaining: how many, and what else counts."""

    remaining: int


class _Sending(NamedTuple):
    """A message that is leaving; behind it, its memory may be used again."""

    request: MPI.Request
    counting: Counting
    sent: Callable[[], object] | None


class _Returning(NamedTuple):
    """A result that is to come from the next rank."""

    request: MPI.Request
    counting: Counting
    result: NDArray[Any]
    finish: Callable[[], object]


class Chain:
    """This rank's place in it. column: its ranks, in the order of summation."""

    def __init__(self, column: MPI.Intracomm) -> None:
        self.column = column
        self.at = column.rank
        self.last = column.size - 1
        self._returning: deque[_Returning] = deque()
        self._sending: list[_Sending] = []

    def expect(self, sums: NDArray[Any]) -> MPI.Request:
        """The sums of all ranks before this one, which is not the first."""
        return self.column.Irecv(_bytes(sums), self.at - 1, _FORWARD)

    def pass_on(
        self,
        counting: Counting,
        sums: NDArray[Any],
        result: NDArray[Any],
        sent: Callable[[], object],
        finish: Callable[[], object],
    ) -> None:
        """Send the sums up to this rank, which is not the last, to the next one, whose answer goes to `result`.

        sent: called when `sums` is free again. finish: when the result is there, and is on its way to the rank before.
        """
        self._send(counting, sums, self.at + 1, _FORWARD, sent)
        self._returning.append(
            _Returning(self.column.Irecv(_bytes(result), self.at + 1, _BACK), counting, result, finish)
        )

    def give_back(self, counting: Counting, result: NDArray[Any]) -> None:
        """Send a result to the rank before, if there is one."""
        if self.at:
            self._send(counting, result, self.at - 1, _BACK, None)

    def move(self) -> None:
        """Go on with every message that has come or gone."""
        while self._returning and self._returning[0].request.Test():
            _, counting, result, finish = self._returning.popleft()
            self.give_back(counting, result)
            finish()
        if self._sending:
            self._sending = [sending for sending in self._sending if not _has_gone(sending)]

    def requests(self) -> list[MPI.Request]:
        """What has to happen before `move` can do more; none where nothing is under way."""
        heads = [self._returning[0].request] if self._returning else []
        return heads + [sending.request for sending in self._sending]

    def _send(
        self, counting: Counting, what: NDArray[Any], to: int, tag: int, sent: Callable[[], object] | None
    ) -> None:
        counting.remaining += 1
        self._sending.append(_Sending(self.column.Isend(_bytes(what), to, tag), counting, sent))


def _has_gone(sending: _Sending) -> bool:
    if not sending.request.Test():
        return False
    sending.counting.remaining -= 1
    if sending.sent is not None:
        sending.sent()
    return True


def _bytes(array: NDArray[Any]) -> list[Any]:
    return [array.view("u1"), MPI.BYTE]
