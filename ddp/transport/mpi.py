"""Sums by messages, for ranks on any number of nodes: nonblocking, in pipelined chunks, moved on by polling.

A chunk takes two steps. *Scatter*: rank r receives slice r of the chunk from every rank (`Ialltoallv`) and sums them in
rank order. *Gather*: the sums go to all ranks (`Iallgatherv`, in place). A rank sends and receives 2 (N - 1) / N of the
bytes, the least possible.

Why not `Iallreduce`: its order of summation is the library's and changes with size, algorithm and version, and nothing
promises the same bits on every rank; here they equal the shared transport's. float16 and bfloat16, which MPI does not
know, need no second path. It costs little: milliseconds against `Iallreduce` in the same chunks, one node, Open MPI
5.0.11: 2 ranks 64 KiB 0.06 to 0.03, 4 MiB 0.64 to 2.1, 64 MiB 24 to 51; 4 ranks on two cores 16 MiB 16 to 14, 64 MiB
60 to 62.

A header goes ahead, from every rank to every rank. With it goes a whole small array, which all ranks sum: what counts
there is the number of messages: sums of two ranks' 1 KiB took 94 µs in the two steps after it, and take 14.

**Many ranks**: a message for each other one is too many. Then ranks that follow one another are a group, and do these
steps within it. In between, rank r of each group adds its slice to the sum that comes from rank r of the group before,
and sends it on to the next one (`ddp.transport.chain`), so the order, and with it the bits, stay. Headers go the same
way by themselves (`ddp.transport.announcing`); a small array is a chunk like others. The bytes are as many as without
groups. Something like this, with rings both ways, is known as the 2D torus (H. Mikami et al., Massively Distributed
SGD, 2018, arXiv 1811.05233).

At most `DEPTH` chunks are in their first step. Collectives must be posted in the same order on every rank, but ranks
poll at different times: scatters are posted in the order of `start` on one communicator, gathers, which are posted when
sums are there, in the same order on another.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ddp.transport.announcing import Announcements
from ddp.transport.base import CACHE_LINE, accumulator_dtype, closed, in_words, round_up, stopped
from ddp.transport.chain import Chain
from ddp.transport.chunks import AHEAD, DEPTH, Chunk, Group, MpiBuffer, chunk_bytes, count_groups, packed
from ddp.transport.headers import weights
from ddp.transport.order import rank_order, tree_order
from ddp.transport.summing import Summation, check_divisor, sum_headers, weighing
from ddp.transport.under_way import advance_all, have_come, under_way, wait_a_little


class _Scatter(NamedTuple):
    """A chunk's first step under way: what MPI reads and writes must live as long.

    requests: of all that this rank is to sum.
    """

    requests: list[MPI.Request]
    buffer: MpiBuffer
    chunk: Chunk
    sent: NDArray[np.uint8]
    scratch: NDArray[np.uint8]


@dataclass(slots=True)
class _Gather:
    """A chunk's second step, which begins when this rank has its slice of the sums, and earlier ones have begun."""

    buffer: MpiBuffer
    chunk: Chunk
    ready: bool = False


class MpiTransport:
    """See `ddp.transport.base.Transport`. `comm`: any intracommunicator; it is duplicated. groups: how many the ranks
    are divided into; None: as many as `count_groups` says.
    """

    name = "mpi"
    progress = "polling"

    def __init__(self, comm: MPI.Intracomm, groups: int | None = None) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self.groups = groups or count_groups(comm.size)
        number = ((comm.rank + 1) * self.groups - 1) // comm.size
        first, end = (place * comm.size // self.groups for place in (number, number + 1))
        self._group = Group(first, end - first, comm.size // self.groups, comm.rank - first)
        self._comm = comm.Dup()
        self._scatter_comm = self._comm
        # Where there are several groups; the chain of a rank that sums.
        self._announcements: Announcements | None = None
        self._chain: Chain | None = None
        if self.groups > 1:
            self._scatter_comm = cast("MPI.Intracomm", self._comm.Split(number, comm.rank))
            sums = self._group.rank < self._group.owners
            column = cast("MPI.Intracomm", self._comm.Split(self._group.rank if sums else MPI.UNDEFINED, comm.rank))
            self._chain = Chain(column) if sums else None
            firsts = column if self._group.rank == 0 else None
            self._announcements = Announcements(self._comm, self._scatter_comm, firsts)
        self._gather_comm = self._scatter_comm.Dup()
        self._closed = False
        self._stopped = ""  # by which exception
        self._queue: deque[tuple[MpiBuffer, Chunk]] = deque()
        self._scattering: deque[_Scatter] = deque()
        self._summing: deque[_Gather] = deque()
        self._gathering: deque[tuple[MPI.Request, MpiBuffer]] = deque()
        self._scratch: list[NDArray[np.uint8]] = []  # receive memory of chunks that are not under way

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> MpiBuffer:
        accumulator_dtype(dtype)
        order = rank_order(self.size) if shards is None else tree_order(shards, self.size)
        return MpiBuffer(count, np.dtype(dtype), header, order, self._group)

    def start(self, buffer: MpiBuffer, divisor: float | None = 1.0) -> None:
        if self._closed:
            raise closed(self.name)
        if buffer.started:
            raise RuntimeError("transport mpi: the buffer was started twice; wait for it first")
        check_divisor(buffer.array.dtype, divisor)
        buffer.started = True
        buffer.divisor = divisor
        buffer.remaining = len(buffer.chunks)
        if self._announcements is not None and buffer.header.size:
            self._announcements.start(buffer)
        self._queue.extend((buffer, chunk) for chunk in buffer.chunks)
        self.poll()

    def poll(self) -> None:
        if self._stopped:
            raise stopped(self.name, self._stopped)
        try:
            self._advance()
        except BaseException as error:
            self._stopped = in_words(error)
            raise

    def _advance(self) -> None:
        if self._announcements is not None:
            self._announcements.move()
        if self._chain is not None:
            self._chain.move()
        while self._gathering and self._gathering[0][0].Test():
            self._gathering.popleft()[1].remaining -= 1
        while self._scattering and have_come(self._scattering[0].requests) and self._may_sum(self._scattering[0]):
            self._finish_scatter()
        while self._queue and len(self._scattering) < DEPTH:
            self._post_scatter(*self._queue.popleft())

    def wait(self, buffer: MpiBuffer) -> None:
        if not buffer.started:
            raise RuntimeError("transport mpi: wait for a buffer that was not started")
        self.poll()
        looks = 0
        while buffer.remaining:
            # Blocks inside MPI, where all requests progress and where the user's mpi_yield_when_idle rules.
            heads = self._requests()
            if under_way:
                looks += 1
                wait_a_little(heads, looks)
                advance_all()
            elif len(heads) == 1:
                heads[0].Wait()
            else:
                heads[0].Waitany(heads)
            self.poll()
        buffer.started = False

    def is_done(self, buffer: MpiBuffer) -> bool:
        return not buffer.remaining

    def independent(self) -> "MpiTransport":
        return MpiTransport(self._comm, self.groups)

    def close(self) -> None:
        self._closed = True
        if self._stopped or self._queue or self._requests():
            return
        self._gather_comm.Free()
        if self._chain is not None:
            self._chain.column.Free()
        if self._announcements is not None:
            self._announcements.close()
            self._scatter_comm.Free()
        self._comm.Free()

    def _requests(self) -> list[MPI.Request]:
        """What has to happen in MPI before `poll` can do more; none where nothing is under way."""
        requests = list(self._scattering[0].requests) if self._scattering else []
        requests += [self._gathering[0][0]] if self._gathering else []
        for part in (self._chain, self._announcements):
            requests += [] if part is None else part.requests()
        return requests

    # --- scatter ------------------------------------------------------------------------------------------------------

    def _post_scatter(self, buffer: MpiBuffer, chunk: Chunk) -> None:
        if chunk is AHEAD:
            request = self._scatter_comm.Iallgather(buffer.ahead, buffer.everyones)
            self._scattering.append(_Scatter([request], buffer, chunk, chunk.sums, chunk.sums))
            return
        own = self._own(chunk)
        room = self._room(buffer, own)
        scratch = self._scratch.pop() if self._scratch else np.empty(0, np.uint8)
        wanted = room + sum(chunk.receive[0])
        if scratch.size < wanted:
            usual = chunk_bytes(self._group.owners) + self._group.size * CACHE_LINE
            scratch = np.empty(max(wanted, usual), np.uint8)
        sent, chain = packed(chunk), self._chain
        requests = [self._scatter_comm.Ialltoallv([sent, chunk.send], [scratch[room:], chunk.receive])]
        if chain is not None and chain.at and own.stop > own.start:
            requests.append(chain.expect(_sums(scratch, buffer, own, buffer.sums[0])))
        self._scattering.append(_Scatter(requests, buffer, chunk, sent, scratch))

    def _own(self, chunk: Chunk) -> slice:
        """The elements of a chunk that this rank sums."""
        return slice(*chunk.bounds[self._group.rank : self._group.rank + 2])

    def _room(self, buffer: MpiBuffer, own: slice) -> int:
        """Bytes of scratch memory for the sums of whole groups, before what comes from each rank of this one."""
        if self.groups == 1:
            return 0
        return round_up(
            max(buffer.sums) * (own.stop - own.start) * accumulator_dtype(buffer.array.dtype).itemsize, CACHE_LINE
        )

    def _may_sum(self, scatter: _Scatter) -> bool:
        """Whether the ranks' weights are known, if they are wanted."""
        buffer = scatter.buffer
        return buffer.divisor is not None or self._announcements is None or buffer.known

    def _finish_scatter(self) -> None:
        scatter = self._scattering.popleft()
        buffer, chunk = scatter.buffer, scatter.chunk
        if chunk is AHEAD:
            if buffer.header.size:
                sum_headers(buffer.headers, out=buffer.header)
            if buffer.summation is not None:
                buffer.summation.run(*self._weighing(buffer))
            buffer.remaining -= 1
            return
        gather = _Gather(buffer, chunk)
        self._summing.append(gather)
        if chunk.slices[0][self._group.rank]:
            self._add(gather, scatter.scratch)
        else:
            self._scratch.append(scatter.scratch)
            self._begin_gather(gather)

    def _add(self, gather: _Gather, scratch: NDArray[np.uint8]) -> None:
        """Add this group's ranks to the sum of those before, and pass it on: to the next group, or as result."""
        buffer, chunk, chain = gather.buffer, gather.chunk, self._chain
        own = self._own(chunk)
        room, count = self._room(buffer, own), own.stop - own.start
        rows = scratch[room:][: sum(buffer.parts) * count * buffer.wide.itemsize].view(buffer.wide).reshape(-1, count)
        result = chunk.sums.view(buffer.array.dtype)[own]
        addends: Sequence[NDArray[Any]] | NDArray[Any] = rows
        divisor, weights_ = self._weighing(buffer)
        if chain is not None and chain.at:
            before = buffer.sums[0]
            addends = [*_sums(scratch, buffer, own, before).reshape(before, -1), *rows]
            weights_ = weights_ and [1.0, *weights_]
        free = partial(self._scratch.append, scratch)
        if chain is None or chain.at == chain.last:
            Summation(addends, [result], buffer.merges).run(divisor, weights_)
            free()
            if chain is not None:
                chain.give_back(buffer, result)
            self._begin_gather(gather)
        else:
            # Over those that came: each is written when what is at its place, or before, has been read.
            sums = _sums(scratch, buffer, own, buffer.sums[1])
            Summation(addends, list(sums.reshape(buffer.sums[1], -1)), buffer.merges).run(1.0, weights_)
            chain.pass_on(buffer, sums, result, free, partial(self._begin_gather, gather))

    def _weighing(self, buffer: MpiBuffer) -> tuple[float, Sequence[float] | None]:
        """What to divide by, and what to multiply the addends of this group with first."""
        if buffer.divisor is not None:
            return buffer.divisor, None
        if self._announcements is not None:
            return self._announcements.weighing(buffer)
        return weighing(weights(buffer.headers), buffer.shards is not None)

    # --- gather -------------------------------------------------------------------------------------------------------

    def _begin_gather(self, gather: _Gather) -> None:
        """This rank has its slice. Gathers are posted in the order of scatters."""
        gather.ready = True
        while self._summing and self._summing[0].ready:
            gather = self._summing.popleft()
            buffer, chunk = gather.buffer, gather.chunk
            request = self._gather_comm.Iallgatherv(MPI.IN_PLACE, [chunk.sums, chunk.slices])
            self._gathering.append((request, buffer))


def _sums(scratch: NDArray[np.uint8], buffer: MpiBuffer, own: slice, count: int) -> NDArray[Any]:
    """The beginning of scratch memory as so many sums of a slice, one behind the other."""
    dtype = accumulator_dtype(buffer.array.dtype)
    return scratch[: count * (own.stop - own.start) * dtype.itemsize].view(dtype)
