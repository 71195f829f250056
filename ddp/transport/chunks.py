"""Arrays that are summed by messages, cut into chunks and slices.

Chunks bound the scratch memory and every count (MPI counts to 2**31 - 1); where a slice of one would be very short,
they grow with the number of slices.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddp.transport.base import CACHE_LINE, accumulator_dtype, aligned_zeros, round_up, slice_bounds
from ddp.transport.order import Order
from ddp.transport.shards import Shards
from ddp.transport.summing import Summation

CHUNK_BYTES = 1 << 20  # of a chunk, at least
SLICE_BYTES = 1 << 13  # of each rank's slice of it, at least: a shorter one takes longer to post than to send
WHOLE_BYTES = 1 << 13  # of a small array
# So many ranks are several groups. A backward in virtual time without and with them, 1.45 us for each message posted,
# ms: 512 ranks, 12 ms of own work, 200 KB of gradients, 10 Gbit/s 18.9 and 13.6, 25 Gbit/s 18.8 and 13.2; 3 MB 21.3 and
# 17.1, 20.2 and 14.7. 256 ranks, 200 KB 15.5 and 13.1, 15.4 and 12.9; but 24 ms, 13 MB 38.7 and 44.1, 34.6 and 32.7:
# hops along the groups wait for hooks of backward.
GROUPED = 512
DEPTH = 3  # one chunk on its way in, one being summed, one queued behind it
TALLY = 2  # numbers: the first rank's weight, and how many ranks have the same


class Group(NamedTuple):
    """Ranks that follow one another and exchange chunks: the first one, how many there are, how many of them sum a
    slice of each chunk, and this rank's place among them.
    """

    first: int
    size: int
    owners: int
    rank: int


Counts = tuple[list[int], list[int]]
"""For each rank: how many bytes, and where they begin."""


def count_groups(ranks: int) -> int:
    """How many groups so many ranks are: with half as many hops along them as there are ranks in each."""
    return 1 if ranks < GROUPED else round((ranks / 4) ** 0.5)


def chunk_bytes(owners: int) -> int:
    """Bytes of a chunk that so many ranks of a group sum."""
    return max(CHUNK_BYTES, owners * SLICE_BYTES)


class Chunk(NamedTuple):
    """A part of a buffer's arrays, as bytes, and how its two messages cut it among the ranks of the group."""

    parts: list[NDArray[Any]]  # elements
    sums: NDArray[np.uint8]
    bounds: list[int]  # in elements: slice r of the chunk, which rank r sums, begins there
    slices: Counts  # of the sums
    send: Counts
    receive: Counts  # where this rank's slice of every rank arrives


AHEAD = Chunk([], np.empty(0, np.uint8), [], ([], []), ([], []), ([], []))
"""What goes ahead is a buffer's first chunk, in the queue of the others, so that its turn is the same on every rank."""


class MpiBuffer:
    """Private memory; see `ddp.transport.base.Buffer`."""

    __slots__ = (
        "ahead",
        "array",
        "before",
        "chunks",
        "divisor",
        "everyones",
        "header",
        "headers",
        "known",
        "merges",
        "parts",
        "remaining",
        "shards",
        "started",
        "summation",
        "sums",
        "total",
        "wide",
    )

    def __init__(self, count: int, dtype: np.dtype[Any], header: int, order: Order, group: Group) -> None:
        last = group.first + group.size
        alone = group.size == len(order.parts)
        whole = alone and order.shards is None and count * dtype.itemsize <= WHOLE_BYTES
        begin = round_up(8 * header, CACHE_LINE)
        self.ahead = aligned_zeros(begin + whole * count * dtype.itemsize, np.uint8)  # header, and a small array
        self.everyones = aligned_zeros(group.size * self.ahead.size, np.uint8)
        rows = self.everyones.reshape(group.size, self.ahead.size)
        self.header = self.ahead[: 8 * header].view(np.float64)
        self.headers = rows[:, : 8 * header].view(np.float64)  # of the group
        # Headers of the groups before this one, and of all, summed: each with a tally of weights behind it.
        self.before, self.total = np.zeros((2, 0 if alone else header + TALLY))
        self.known = False  # whether the weights of all ranks are
        array = self.ahead[begin:].view(dtype) if whole else aligned_zeros(count, dtype)
        self.summation = Summation(rows[:, begin:].view(dtype), [array]) if whole and count else None
        # How many sums of a chunk come from the groups before this one, and how many are there after it; see `Order`.
        self.sums = order.left(group.first), order.left(last)
        self.merges = None if order.shards is None else (0,) * self.sums[0] + order.of(group.first, last)
        self.parts = order.parts[group.first : last]
        self.shards: Shards | None = None
        self.wide = array.dtype  # of what is sent to be summed
        parts = [array]
        if order.shards is not None:
            self.wide = accumulator_dtype(array.dtype)
            slots = [aligned_zeros(array.size, self.wide) for _ in range(order.slots(array.dtype))]
            self.shards = Shards(array, slots, order.own[group.first + group.rank])
            parts = self.shards.parts
        self.array = array
        ahead = (AHEAD,) * bool(self.ahead.size and alone)
        self.chunks = ahead if whole else (*ahead, *_chunks(parts, array, max(order.parts), self.parts, group))
        self.divisor: float | None = 1.0
        self.remaining = 0  # chunks of this round that are not complete, and messages that have not gone
        self.started = False


def _chunks(
    parts: list[NDArray[Any]], array: NDArray[Any], most: int, numbers: Sequence[int], group: Group
) -> Iterator[Chunk]:
    """most: parts that any rank of all groups has. numbers: how many each rank of this group has."""
    length = chunk_bytes(group.owners) // (parts[0].dtype.itemsize * most)
    # Numbers for each rank, which on many ranks are more than the chunk: all but the last chunk have the same.
    cut = cache(partial(_cut, array.dtype.itemsize, parts[0].dtype.itemsize, numbers, group))
    for begin in range(0, array.size, length):
        sums = array[begin : begin + length]
        yield Chunk([part[begin : begin + length] for part in parts], sums.view(np.uint8), *cut(sums.size))


def _cut(
    itemsize: int, wide: int, numbers: Sequence[int], group: Group, count: int
) -> tuple[list[int], Counts, Counts, Counts]:
    """What a chunk of `count` elements has behind its arrays; these have `itemsize` bytes, what is sent has `wide`."""
    bounds = slice_bounds(count, itemsize, group.owners) + [count] * (group.size - group.owners)
    counts = [end - begin for begin, end in pairwise(bounds)]
    own, mine = wide * numbers[group.rank], wide * counts[group.rank]
    before = accumulate(numbers[:-1], initial=0)
    return (
        bounds,
        ([count * itemsize for count in counts], [bound * itemsize for bound in bounds[:-1]]),
        ([count * own for count in counts], [bound * own for bound in bounds[:-1]]),
        ([mine * number for number in numbers], [mine * parts for parts in before]),
    )


def packed(chunk: Chunk) -> NDArray[np.uint8]:
    """The parts' slices as they are sent: all parts' first slice, all parts' second, ..."""
    if len(chunk.parts) == 1:
        return chunk.parts[0].view(np.uint8)
    return np.concatenate([part[begin:end] for begin, end in pairwise(chunk.bounds) for part in chunk.parts]).view(
        np.uint8
    )
