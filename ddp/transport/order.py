"""In which order ranks are added: rank order, or that of a tree over shards.

Where a job is made of shards (`ddp.job`), that many are added in the order of a tree, whoever carries them: the sum
over the shards [a, b) is the sum over [a, m) plus that over [m, b), m = (a + b) // 2. What a rank carries is a few
nodes of that tree, its parts; each is summed by itself (`ddp.transport.shards`) before the parts of all ranks are.

Either order is said by `merges`: parts are taken from left to right, and behind each so many additions of the two
latest sums follow. Rank order is 0, 1, 1, ...; a tree over four is 0, 1, 0, 2.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ddp.transport.base import accumulator_dtype


class Order(NamedTuple):
    """Who adds what, and when, in a group of ranks."""

    shards: int | None
    """How many leaves the tree has; None: rank order."""
    parts: tuple[int, ...]
    """For each rank, how many arrays of it the ranks' sum is made of."""
    merges: tuple[int, ...]
    """Of all parts, in the order of ranks."""
    own: tuple[tuple[int, ...], ...]
    """For each rank, the merges of its shards before that."""

    def of(self, first: int, last: int) -> tuple[int, ...]:
        """The merges of the parts of the ranks [first, last)."""
        return self.merges[sum(self.parts[:first]) : sum(self.parts[:last])]

    def left(self, ranks: int) -> int:
        """How many sums there are when the parts of the first `ranks` ranks have been added up."""
        merges = self.of(0, ranks)
        return len(merges) - sum(merges)

    def slots(self, dtype: np.dtype[Any]) -> int:
        """Arrays of accumulators that a rank needs beside the one that its shards' addends of `dtype` come in."""
        return max(_slots(own, accumulator_dtype(dtype) == dtype) for own in self.own) if self.shards else 0


def rank_order(ranks: int) -> Order:
    """One part a rank, added from left to right."""
    return Order(None, (1,) * ranks, (0,) + (1,) * (ranks - 1), ((0,),) * ranks)


def tree_order(shards: int, ranks: int) -> Order:
    """The tree over the shards, carried by the ranks as `carried` says."""
    begins: dict[int, list[int]] = {end: [] for end in range(shards + 1)}  # of the tree's inner nodes, by their end
    for begin, end in _inner_nodes(0, shards):
        begins[end].append(begin)
    parts, merges, own = [], [], []
    for rank in range(ranks):
        range_ = carried(shards, rank, ranks)
        inside = [sum(begin >= range_.start for begin in begins[shard + 1]) for shard in range_]
        ends: list[int] = []
        for shard, count in zip(range_, inside, strict=True):
            ends = [*ends[: len(ends) - count], shard + 1]
        own.append(tuple(inside))
        parts.append(len(ends))
        merges += [sum(begin < range_.start for begin in begins[end]) for end in ends]
    return Order(shards, tuple(parts), tuple(merges), tuple(own))


def carried(shards: int, rank: int, ranks: int) -> range:
    """The shards of one rank: as many as of any other, or one more."""
    return range(rank * shards // ranks, (rank + 1) * shards // ranks)


def _inner_nodes(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Of the tree over [begin, end), children before their parents."""
    if end - begin > 1:
        middle = (begin + end) // 2
        yield from _inner_nodes(begin, middle)
        yield from _inner_nodes(middle, end)
        yield begin, end


def _slots(own: tuple[int, ...], last_stays: bool) -> int:
    """last_stays: whether the last addend, if nothing is to be added to it, is a part where it is."""
    depth = deepest = 0
    for place, merges in enumerate(own):
        stays = last_stays and not merges and place == len(own) - 1
        depth += 1 - merges - stays
        deepest = max(deepest, depth)
    return deepest
