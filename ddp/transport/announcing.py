"""Headers of ranks that are several groups (`ddp.transport.mpi`), and what all ranks' weights mean for a group's sums.

The ranks of a group have each other's. The first one adds them to the sum that comes from the first one of the group
before, and sends that on; the sum of all travels back, and from there to the others of each group. A tally of weights
travels with it: the weight of rank 0, and how many ranks have the same.

This goes on beside the chunks, on communicators of its own, since it is on its way for as long as a chunk, and those of
its buffer may have to wait for it: behind the chunks of the buffer before it would stop the pipeline for so long.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from mpi4py import MPI

from ddp.transport.chain import Chain
from ddp.transport.chunks import MpiBuffer
from ddp.transport.headers import weights
from ddp.transport.summing import sum_headers
from ddp.transport.under_way import have_come


class _Announcement(NamedTuple):
    """A buffer's header under way, and what has to come before it goes further."""

    buffer: MpiBuffer
    requests: list[MPI.Request]


class Announcements:
    """Making it is collective. comm: all ranks. group: this one's. column: the first ones of all groups; None on
    other ranks.
    """

    def __init__(self, comm: MPI.Intracomm, group: MPI.Intracomm, column: MPI.Intracomm | None) -> None:
        self._size = comm.size
        self._rows = group.Dup()
        self._totals = group.Dup()
        self._chain = None if column is None else Chain(column.Dup())
        self._queue: deque[MpiBuffer] = deque()
        self._gathering: deque[_Announcement] = deque()  # on the first rank of a group: what it is to add
        self._ending: deque[_Announcement] = deque()

    def start(self, buffer: MpiBuffer) -> None:
        """A buffer's header is to be sent: `move` does."""
        buffer.known = False
        buffer.remaining += 1
        self._queue.append(buffer)

    def move(self) -> None:
        """Go on with all that has come or gone, and with what was started."""
        while self._queue:
            self._post(self._queue.popleft())
        if self._chain is not None:
            self._chain.move()
            while self._gathering and have_come(self._gathering[0].requests):
                self._add(self._gathering.popleft().buffer, self._chain)
        while self._ending and have_come(self._ending[0].requests):
            buffer = self._ending.popleft().buffer
            buffer.header[:] = buffer.total[:-2]
            buffer.known = True
            buffer.remaining -= 1

    def requests(self) -> list[MPI.Request]:
        """What has to happen before `move` can do more; none where nothing is under way."""
        requests = [] if self._chain is None else self._chain.requests()
        for queue in (self._gathering, self._ending):
            requests += queue[0].requests if queue else []
        return requests

    def weighing(self, buffer: MpiBuffer) -> tuple[float, Sequence[float] | None]:
        """What to divide a sum by, and what to multiply the addends of this group with first, as
        `ddp.transport.summing.weighing` says it of all ranks' weights.
        """
        weighed = buffer.shards is not None
        if buffer.total[-1] == self._size and not weighed:
            return self._size, None
        return weights([buffer.total])[0], None if weighed else weights(buffer.headers)

    def close(self) -> None:
        """Collective; nothing is under way."""
        self._rows.Free()
        self._totals.Free()
        if self._chain is not None:
            self._chain.column.Free()

    def _post(self, buffer: MpiBuffer) -> None:
        requests = [self._rows.Iallgather(buffer.ahead, buffer.everyones)]
        if self._chain is None:
            self._ending.append(_Announcement(buffer, [*requests, self._totals.Ibcast(buffer.total)]))
            return
        if self._chain.at:
            requests.append(self._chain.expect(buffer.before))
        self._gathering.append(_Announcement(buffer, requests))

    def _add(self, buffer: MpiBuffer, chain: Chain) -> None:
        before, total, own = buffer.before, buffer.total, weights(buffer.headers)
        first = before[-2] if chain.at else own[0]
        sum_headers((before[:-2], *buffer.headers), out=total[:-2])
        total[-2:] = first, before[-1] + own.count(first)
        if chain.at < chain.last:
            chain.pass_on(buffer, total.copy(), total, lambda: None, partial(self._tell, buffer))
        else:
            chain.give_back(buffer, total)
            self._tell(buffer)

    def _tell(self, buffer: MpiBuffer) -> None:
        self._ending.append(_Announcement(buffer, [self._totals.Ibcast(buffer.total)]))
