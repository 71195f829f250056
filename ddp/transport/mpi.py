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

Chunks bound the scratch memory and every count (MPI counts to 2**31 - 1); from 128 ranks on they grow with these. At
most `DEPTH` chunks are in their first step. Collectives must be posted in the same order on every rank, but ranks poll
at different times: scatters are posted in the order of `start` on one communicator, gathers, which are posted when a
scatter completes, in the same order on another.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ddp.transport.base import (
    CACHE_LINE,
    accumulator_dtype,
    aligned_zeros,
    closed,
    in_words,
    round_up,
    slice_bounds,
    stopped,
)
from ddp.transport.headers import weights
from ddp.transport.order import Order, rank_order, tree_order
from ddp.transport.shards import Shards
from ddp.transport.summing import Summation, check_divisor, sum_headers
from ddp.transport.under_way import advance_all, under_way, wait_a_little

CHUNK_BYTES = 1 << 20  # of a chunk, at least
SLICE_BYTES = 1 << 13  # of each rank's slice of it, at least: a shorter one takes longer to post than to send
WHOLE_BYTES = 1 << 13  # of a small array
DEPTH = 3  # one chunk on its way in, one being summed, one queued behind it


Counts = tuple[list[int], list[int]]
"""For each rank: how many bytes, and where they begin."""


def chunk_bytes(ranks: int) -> int:
    """Bytes of a chunk of an array that is summed over so many ranks."""
    return max(CHUNK_BYTES, ranks * SLICE_BYTES)


class Chunk(NamedTuple):
    """A part of a buffer's arrays, as bytes, and how its two messages cut it."""

    parts: list[NDArray[Any]]  # elements
    sums: NDArray[np.uint8]
    bounds: list[int]  # in elements: slice r of the chunk, which belongs to rank r, begins there
    slices: Counts  # of the sums
    send: Counts
    receive: Counts  # where this rank's slice of every rank arrives


# What goes ahead is a buffer's first chunk, in the queue of the others, so that its turn is the same on every rank.
_AHEAD = Chunk([], np.empty(0, np.uint8), [], ([], []), ([], []), ([], []))


class MpiBuffer:
    """Private memory; see `ddp.transport.base.Buffer`."""

    __slots__ = (
        "ahead",
        "array",
        "chunks",
        "divisor",
        "everyones",
        "header",
        "headers",
        "order",
        "remaining",
        "shards",
        "started",
        "summation",
        "wide",
    )

    def __init__(self, count: int, dtype: np.dtype[Any], header: int, order: Order, rank: int) -> None:
        size = len(order.parts)
        self.order = order
        whole = order.shards is None and count * dtype.itemsize <= WHOLE_BYTES
        begin = round_up(8 * header, CACHE_LINE)
        self.ahead = aligned_zeros(begin + whole * count * dtype.itemsize, np.uint8)  # header, and a small array
        self.everyones = aligned_zeros(size * self.ahead.size, np.uint8)
        rows = self.everyones.reshape(size, self.ahead.size)
        self.header = self.ahead[: 8 * header].view(np.float64)
        self.headers = rows[:, : 8 * header].view(np.float64)
        array = self.ahead[begin:].view(dtype) if whole else aligned_zeros(count, dtype)
        self.summation = Summation(rows[:, begin:].view(dtype), [array]) if whole and count else None
        self.shards: Shards | None = None
        self.wide = array.dtype  # of what is sent to be summed
        parts = [array]
        if order.shards is not None:
            self.wide = accumulator_dtype(array.dtype)
            slots = [aligned_zeros(array.size, self.wide) for _ in range(order.slots(array.dtype))]
            self.shards = Shards(array, slots, order.own[rank])
            parts = self.shards.parts
        self.array = array
        ahead = (_AHEAD,) * bool(self.ahead.size)
        self.chunks = ahead if whole else (*ahead, *_chunks(parts, array, order, rank))
        self.divisor: float | None = 1.0
        self.remaining = 0  # chunks of this round that are not complete
        self.started = False


def _chunks(parts: list[NDArray[Any]], array: NDArray[Any], order: Order, rank: int) -> Iterator[Chunk]:
    length = chunk_bytes(len(order.parts)) // (parts[0].dtype.itemsize * max(order.parts))
    # Numbers for each rank, which on many ranks are more than the chunk: all but the last chunk have the same.
    cut = cache(partial(_cut, array.dtype.itemsize, parts[0].dtype.itemsize, order.parts, rank))
    for begin in range(0, array.size, length):
        sums = array[begin : begin + length]
        yield Chunk([part[begin : begin + length] for part in parts], sums.view(np.uint8), *cut(sums.size))


def _cut(
    itemsize: int, wide: int, numbers: Sequence[int], rank: int, count: int
) -> tuple[list[int], Counts, Counts, Counts]:
    """What a chunk of `count` elements has behind its arrays; they have `itemsize` bytes, and what is sent has `wide`.

    numbers: how many parts each rank has.
    """
    bounds = slice_bounds(count, itemsize, len(numbers))
    counts = [end - begin for begin, end in pairwise(bounds)]
    own, mine = wide * numbers[rank], wide * counts[rank]
    before = accumulate(numbers[:-1], initial=0)
    return (
        bounds,
        ([count * itemsize for count in counts], [bound * itemsize for bound in bounds[:-1]]),
        ([count * own for count in counts], [bound * own for bound in bounds[:-1]]),
        ([mine * number for number in numbers], [mine * parts for parts in before]),
    )


class _Scatter(NamedTuple):
    """A chunk's first step under way: what MPI reads and writes must live as long."""

    request: MPI.Request
    buffer: MpiBuffer
    chunk: Chunk
    sent: NDArray[np.uint8]
    scratch: NDArray[np.uint8]


def _packed(chunk: Chunk) -> NDArray[np.uint8]:
    """The parts' slices as they are sent: all parts' first slice, all parts' second, ..."""
    if len(chunk.parts) == 1:
        return chunk.parts[0].view(np.uint8)
    return np.concatenate([part[begin:end] for begin, end in pairwise(chunk.bounds) for part in chunk.parts]).view(
        np.uint8
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
        self._stopped = ""  # by which exception
        self._queue: deque[tuple[MpiBuffer, Chunk]] = deque()
        self._scattering: deque[_Scatter] = deque()
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
        return MpiBuffer(count, np.dtype(dtype), header, order, self.rank)

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
        if self._stopped:
            raise stopped(self.name, self._stopped)
        try:
            self._advance()
        except BaseException as error:
            self._stopped = in_words(error)
            raise

    def _advance(self) -> None:
        while self._scattering and self._scattering[0][0].Test():
            self._finish_scatter()
        while self._gathering and self._gathering[0][0].Test():
            self._gathering.popleft()[1].remaining -= 1
        while self._queue and len(self._scattering) < DEPTH:
            self._post_scatter(*self._queue.popleft())

    def wait(self, buffer: MpiBuffer) -> None:
        if not buffer.started:
            raise RuntimeError("transport mpi: wait for a buffer that was not started")
        self.poll()
        looks = 0
        while buffer.remaining:
            # Blocks inside MPI, where all requests progress and where the user's mpi_yield_when_idle rules.
            heads = [queue[0][0] for queue in (self._scattering, self._gathering) if queue]
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
        return MpiTransport(self._scatter_comm)

    def close(self) -> None:
        self._closed = True
        if self._stopped or self._queue or self._scattering or self._gathering:
            return
        self._scatter_comm.Free()
        self._gather_comm.Free()

    def _post_scatter(self, buffer: MpiBuffer, chunk: Chunk) -> None:
        if chunk is _AHEAD:
            request = self._scatter_comm.Iallgather(buffer.ahead, buffer.everyones)
            self._scattering.append(_Scatter(request, buffer, chunk, chunk.sums, chunk.sums))
            return
        scratch = self._scratch.pop() if self._scratch else np.empty(0, np.uint8)
        wanted = sum(chunk.receive[0])
        if scratch.size < wanted:
            scratch = np.empty(max(wanted, chunk_bytes(self.size) + self.size * CACHE_LINE), np.uint8)
        sent = _packed(chunk)
        request = self._scatter_comm.Ialltoallv([sent, chunk.send], [scratch, chunk.receive])
        self._scattering.append(_Scatter(request, buffer, chunk, sent, scratch))

    def _finish_scatter(self) -> None:
        _, buffer, chunk, _, scratch = self._scattering.popleft()
        if chunk is _AHEAD:
            if buffer.header.size:
                sum_headers(buffer.headers, out=buffer.header)
            if buffer.summation is not None:
                self._sum(buffer, buffer.summation)
            buffer.remaining -= 1
            return
        (counts, places), wide = chunk.slices, buffer.wide
        mine, at = counts[self.rank], places[self.rank]
        each = (chunk.bounds[self.rank + 1] - chunk.bounds[self.rank]) * wide.itemsize
        parts = sum(buffer.order.parts)
        received = scratch[: parts * each].view(wide).reshape(parts, each // wide.itemsize)
        merges = None if buffer.shards is None else buffer.order.merges
        self._sum(buffer, Summation(received, [chunk.sums[at : at + mine].view(buffer.array.dtype)], merges))
        self._scratch.append(scratch)
        request = self._gather_comm.Iallgatherv(MPI.IN_PLACE, [chunk.sums, chunk.slices])
        self._gathering.append((request, buffer))

    def _sum(self, buffer: MpiBuffer, summation: Summation) -> None:
        if buffer.divisor is None:  # the headers went ahead of the first chunk, so they are there
            summation.average(weights(buffer.headers))
        else:
            summation.run(buffer.divisor)
