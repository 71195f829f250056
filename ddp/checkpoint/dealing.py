"""Who writes what: state that every rank holds is cut into parts of equal bytes, beside what a rank alone holds.

Pure functions of integers.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_WHOLE = 1 << 20  # bytes; a smaller tensor is not cut
_ALIGNED = 4096  # bytes; where larger ones are


class Cut(NamedTuple):
    """Part of a tensor, in bytes of its memory from `begin` to `end`; `place` counts the tensors."""

    place: int
    begin: int
    end: int


def deal(sizes: Sequence[int], alone: Sequence[int]) -> list[list[Cut]]:
    """For each rank its cuts, in order: each byte of the tensors of these sizes is in one.

    alone: the bytes that each rank writes anyway. Those with fewer get more, so that all end together.
    """
    bounds = _bounds(sizes, _rooms(sum(sizes), alone))
    cuts: list[list[Cut]] = [[] for _ in alone]
    start = 0
    for place, size in enumerate(sizes):
        for rank, (low, high) in enumerate(pairwise(bounds)):
            begin, end = max(low, start), min(high, start + size)
            if begin < end:
                cuts[rank].append(Cut(place, begin - start, end - start))
        start += size
    return cuts


def _rooms(total: int, alone: Sequence[int]) -> list[int]:
    """How many of `total` bytes each rank takes, so that the largest sum with what it has is the smallest."""
    for count in range(len(alone), 0, -1):
        level = -(-(total + sum(sorted(alone)[:count])) // count)
        if level >= sorted(alone)[count - 1]:
            break
    return [max(0, level - own) for own in alone]


def _bounds(sizes: Sequence[int], rooms: Sequence[int]) -> list[int]:
    """Where each rank's part begins in all bytes, one after another, and where the last one ends."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    bounds, wanted, place = [0], 0, 0
    for room in rooms[:-1]:
        wanted = min(wanted + room, starts[-1])
        while place < len(sizes) and starts[place + 1] <= wanted:
            place += 1
        inside = wanted - starts[place]
        if place < len(sizes) and sizes[place] < _WHOLE:
            at = starts[place] if 2 * inside < sizes[place] else starts[place + 1]
        else:
            at = starts[place] + inside // _ALIGNED * _ALIGNED
        bounds.append(max(at, bounds[-1]))
    return [*bounds, starts[-1]]
