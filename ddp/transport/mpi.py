"""Sums by messages, for ranks on any number of nodes: nonblocking, in pipelined chunks, moved on by polling.

A chunk takes two steps. *Scatter*: rank r receives slice r of the chunk from every rank (`Ialltoallv`) and sums them in
rank order. *Gather*: the sums go to all ranks (`Iallgatherv`, in place). A rank sends and receives 2 (N - 1) / N of the
bytes, the least possible.

Why not `Iallreduce`: its order of summation is the library's and changes with size, algorithm and version, and nothing
promises the same bits on every rank; here they equal the shared transport's. float16 and bfloat16, which MPI does not
know, need no second path. It costs little: milliseconds against `Iallreduce` in the same chunks, one node, Open MPI
5.0.11: 2 ranks 64 KiB 0.06 to 0.03, 4 MiB 0.64 to 2.1, 64 MiB 24 to 51; 4 ranks on two cores 16 MiB 16 to 14, 64 MiB
60 to 62.

Chunks bound the scratch memory and every count (MPI counts to 2**31 - 1). At most `_DEPTH` chunks are in their first
step. Collectives must be posted in the same order on every rank, but ranks poll at different times: scatters are posted
in the order of `start` on one communicator, gathers, which are posted when a scatter completes, in the same order on
another.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ddp.transport.base import CACHE_LINE, accumulator_dtype, aligned_zeros, check_divisor, closed, slice_bounds
from ddp.transport.summing import Summation, sum_headers

CHUNK_BYTES = 1 << 20
_DEPTH = 3  # one chunk on its way in, one being summed, one queued behind it


class Chunk(NamedTuple):
    """A part of a buffer's arrays, as bytes, and how its two messages cut it: (counts, displacements) in bytes."""

    array: NDArray[np.uint8]
    result: NDArray[np.uint8]
    slices: tuple[list[int], list[int]]  # slice r of the chunk belongs to rank r
    receive: tuple[list[int], list[int]]  # where this rank's slice of every rank arrives


# A buffer's header travels as its first step, in the same queue as the chunks, so that its turn is the same on every
# rank.
_HEADER = Chunk(np.empty(0, np.uint8), np.empty(0, np.uint8), ([], []), ([], []))


class MpiBuffer:
    """Private memory; see `ddp.transport.base.Buffer`."""

    __slots__ = ("array", "chunks", "divisor", "header", "headers", "remaining", "result", "started")

    def __init__(self, array: NDArray[Any], result: NDArray[Any], header: int, size: int, rank: int) -> None:
        self.array = array
        self.result = result
        self.header = np.zeros(header)
        self.headers = np.zeros((size, header))
        self.chunks = (_HEADER,) * bool(header) + tuple(_chunks(array, result, size, rank))
        self.divisor: float | None = 1.0
        self.remaining = 0  # chunks of this round that are not complete
        self.started = False


def _chunks(array: NDArray[Any], result: NDArray[Any], size: int, rank: int) -> Iterator[Chunk]:
    itemsize = array.dtype.itemsize
    length = CHUNK_BYTES // itemsize
    for begin in range(0, array.size, length):
        part, sums = array[begin : begin + length], result[begin : begin + length]
        bounds = [bound * itemsize for bound in slice_bounds(part.size, itemsize, size)]
        counts = [end - begin for begin, end in pairwise(bounds)]
        mine = counts[rank]
        yield Chunk(
            part.view(np.uint8),
            sums.view(np.uint8),
            (counts, bounds[:-1]),
            ([mine] * size, [mine * sender for sender in range(size)]),
        )


class MpiTransport:
    """See `ddp.transport.base.Transport`. `comm`: any intracommunicator; it is duplicated."""

    name = "mpi"
    progress = "polling"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._scatter_comm = comm.Dup()
        self._gather_comm = comm.Dup()
        self._closed = False
        self._queue: deque[tuple[MpiBuffer, Chunk]] = deque()
        self._scattering: deque[tuple[MPI.Request, MpiBuffer, Chunk, NDArray[np.uint8]]] = deque()
        self._gathering: deque[tuple[MPI.Request, MpiBuffer]] = deque()
        self._scratch: list[NDArray[np.uint8]] = []  # receive memory of chunks that are not under way

    def allocate(self, count: int, dtype: DTypeLike, header: int = 0, out_of_place: bool = False) -> MpiBuffer:
        accumulator_dtype(dtype)
        array = aligned_zeros(count, dtype)
        result = aligned_zeros(count, dtype) if out_of_place else array
        return MpiBuffer(array, result, header, self.size, self.rank)

    def start(self, buffer: MpiBuffer, divisor: float | None = 1.0) -> None:
        if self._closed:
            raise closed(self.name)
        if buffer.started:
            raise RuntimeError("transport mpi: the buffer was started twice; wait for it first")
        check_divisor(buffer.array.dtype, divisor)
        buffer.started = True
        buffer.divisor = divisor
        buffer.remaining = len(buffer.chunks)
        self._queue.extend((buffer, chunk) for chunk in buffer.chunks)
        self.poll()

    def poll(self) -> None:
        while self._scattering and self._scattering[0][0].Test():
            self._finish_scatter()
        while self._gathering and self._gathering[0][0].Test():
            self._gathering.popleft()[1].remaining -= 1
        while self._queue and len(self._scattering) < _DEPTH:
            self._post_scatter(*self._queue.popleft())

    def wait(self, buffer: MpiBuffer) -> None:
        if not buffer.started:
            raise RuntimeError("transport mpi: wait for a buffer that was not started")
        self.poll()
        while buffer.remaining:
            # Blocks inside MPI, where all requests progress and where the user's mpi_yield_when_idle rules.
            heads = [queue[0][0] for queue in (self._scattering, self._gathering) if queue]
            index = heads[0].Waitany(heads)
            if self._scattering and heads[index] is self._scattering[0][0]:
                self._finish_scatter()
            else:
                self._gathering.popleft()[1].remaining -= 1
            self.poll()
        buffer.started = False

    def is_done(self, buffer: MpiBuffer) -> bool:
        return not buffer.remaining

    def independent(self) -> "MpiTransport":
        return MpiTransport(self._scatter_comm)

    def close(self) -> None:
        self._closed = True
        if self._queue or self._scattering or self._gathering:
            return
        self._scatter_comm.Free()
        self._gather_comm.Free()

    def _post_scatter(self, buffer: MpiBuffer, chunk: Chunk) -> None:
        if chunk is _HEADER:
            request = self._scatter_comm.Iallgather(buffer.header, buffer.headers)
            self._scattering.append((request, buffer, chunk, chunk.array))
            return
        scratch = self._scratch.pop() if self._scratch else np.empty(CHUNK_BYTES + self.size * CACHE_LINE, np.uint8)
        request = self._scatter_comm.Ialltoallv([chunk.array, chunk.slices], [scratch, chunk.receive])
        self._scattering.append((request, buffer, chunk, scratch))

    def _finish_scatter(self) -> None:
        _, buffer, chunk, scratch = self._scattering.popleft()
        if chunk is _HEADER:
            sum_headers(buffer.headers, out=buffer.header)
            buffer.remaining -= 1
            return
        (counts, places), dtype = chunk.slices, buffer.array.dtype
        mine, at = counts[self.rank], places[self.rank]
        received = [scratch[begin : begin + mine].view(dtype) for begin in chunk.receive[1]]
        summation = Summation(received, [chunk.result[at : at + mine].view(dtype)])
        if buffer.divisor is None:  # the headers went ahead of the first chunk, so they are there
            summation.average(buffer.headers[:, 0].tolist())
        else:
            summation.run(buffer.divisor)
        self._scratch.append(scratch)
        request = self._gather_comm.Iallgatherv(MPI.IN_PLACE, [chunk.result, chunk.slices])
        self._gathering.append((request, buffer))
