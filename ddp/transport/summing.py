"""The one place that knows in which order ranks are added: rank order, element by element, then one division.

Where a job is made of shards (`ddp.job`), that many are added in the order of a tree instead, whoever carries them: the
sum over the shards [a, b) is the sum over [a, m) plus that over [m, b), m = (a + b) // 2. What a rank carries is a few
nodes of that tree, its parts; each is summed by itself (`Shards`) before the parts of all ranks are.

Either order is said by `merges`: parts are taken from left to right, and behind each so many additions of the two
latest sums follow. Rank order is 0, 1, 1, ...; a tree over four is 0, 1, 0, 2.

float32 and float64 go through a compiled loop (`engine.ops.reduce.kernels`), other dtypes through NumPy, in blocks that
stay in the cache between its passes; so do trees that are no chain of additions. All give the same bits. What can be
prepared is prepared when a buffer is allocated, so that a round costs nothing but the arithmetic.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddp.transport.base import accumulator_dtype
from ddp.transport.headers import weights
from engine.ops.reduce.kernels import addresses, prepare_exchange, prepare_sum, sum_slices

# Bytes of one operand of a block. Sum and average of two ranks' 4 MiB, EPYC with 1 MiB of L2 cache, ms: 16 KiB 0.35 and
# 0.47, 32 KiB 0.25 and 0.31, 64 KiB 0.19 and 0.24, 128 KiB 0.12 and 0.21, 256 KiB 0.13 and 0.21.
BLOCK_BYTES = 128 * 1024


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


class Block(NamedTuple):
    """Views of the same elements: one addend per rank, in rank order; room for their sum; the places that want it."""

    addends: tuple[NDArray[Any], ...]
    total: NDArray[Any]
    targets: tuple[NDArray[Any], ...]


class Summation:
    """Sums fixed slices of fixed arrays, as often as asked.

    addends: one array of shape (n,) per rank, in rank order, all of one dtype, or of that in which it is summed.
    targets: arrays of shape (n,) that receive the result; they may be addends. merges: in which order parts of a tree
    are added, whose weights are in them already; without, addends are added from left to right. Where the merges leave
    several sums, each has one target.
    """

    __slots__ = ("_addends", "_compiled", "_merges", "_plain", "_targets", "_wide", "_work", "weighed")

    def __init__(
        self,
        addends: Sequence[NDArray[Any]],
        targets: Sequence[NDArray[Any]],
        merges: Sequence[int] | None = None,
    ) -> None:
        self.weighed = merges is not None
        chain = None if merges is None else _chain(merges)
        if chain is not None:
            addends, merges = [addends[place] for place in chain], None
        self._merges = merges
        self._addends, self._targets = tuple(map(_as_reals, addends)), tuple(map(_as_reals, targets))
        addends, targets = self._addends, self._targets
        dtype = min((one.dtype for one in addends), key=lambda dtype: dtype.itemsize)
        accumulator = accumulator_dtype(dtype)
        if merges is not None:
            depth = _depth(merges)
            length = min(addends[0].size, BLOCK_BYTES // accumulator.itemsize)
            self._work = np.empty((depth, length), accumulator)
            self._compiled = self._plain = None
            return
        # Average of two ranks' 64 KiB in µs, compiled and not: 3.0 and 10.5; of 4 MiB: 160 and 470.
        alike = all(one.dtype == dtype for one in (*addends, *targets))
        self._compiled = (addresses(addends), addresses(targets)) if alike and dtype.char in "fd" else None
        self._plain = prepare_sum(*self._compiled, dtype.char, addends[0].size) if self._compiled else None
        length = min(addends[0].size, BLOCK_BYTES // accumulator.itemsize)
        self._work = np.empty(0 if self._compiled else length, accumulator)
        self._wide = np.empty(length if accumulator != dtype else 0, accumulator)

    def run(self, divisor: float = 1.0, weights: Sequence[float] | None = None) -> None:
        """Write the sum of the addends, divided by `divisor`, to every target.

        weights: what to multiply each addend with; an addend of weight 0 is not looked at.
        """
        # An overflowing gradient is the training script's business (a loss scaler expects it): no warning from in here.
        if self._plain is not None and weights is None:
            self._plain(divisor)
        elif self._merges is not None:
            with np.errstate(all="ignore"):
                self._run_tree(divisor, self._merges)
        elif self._compiled is not None:
            self._run_weighted_compiled(divisor, np.array(weights, np.float64))
        elif weights is not None:
            with np.errstate(all="ignore"):
                self._run_weighted(divisor, weights)
        else:
            sum_block = self._sum_narrow if self._wide.size else _sum
            with np.errstate(all="ignore"):
                for block in self._blocks(self._work):
                    sum_block(block, divisor)

    def average(self, weights: Sequence[float]) -> None:
        """Write the mean weighted by one number a rank to every target; see `weighing`."""
        self.run(*weighing(weights, self.weighed))

    def _run_tree(self, divisor: float, merges: Sequence[int]) -> None:
        for block in self._blocks(self._work[0]):
            size, stack = block.total.size, []  # in a row of `_work`, or an addend that nothing was added to
            for addend, count in zip(block.addends, merges, strict=True):
                stack.append(addend)
                for _ in range(count):
                    right, left = stack.pop(), stack.pop()
                    room = self._work[len(stack), :size]
                    stack.append(np.add(left, right, out=room, dtype=room.dtype, casting="unsafe"))
            if divisor != 1:
                stack = [np.divide(stack[0], divisor, out=self._work[0, :size], dtype=self._work.dtype)]
            for place, target in enumerate(block.targets):
                np.copyto(target, stack[place if len(stack) > 1 else 0], casting="unsafe")

    def _blocks(self, work: NDArray[Any]) -> Iterable[Block]:
        count = self._addends[0].size
        for begin in range(0, count, work.size or 1):
            end = min(begin + work.size, count)
            yield Block(
                tuple(array[begin:end] for array in self._addends),
                work[: end - begin],
                tuple(array[begin:end] for array in self._targets),
            )

    def _sum_narrow(self, block: Block, divisor: float) -> None:
        """Two bytes an element: widen, sum, divide, round once."""
        total = block.total
        wide = self._wide[: total.size]
        np.copyto(total, block.addends[0], casting="unsafe")
        for addend in block.addends[1:]:
            np.copyto(wide, addend, casting="unsafe")
            np.add(total, wide, out=total)
        if divisor != 1:
            np.divide(total, divisor, out=total)
        for target in block.targets:
            np.copyto(target, total, casting="unsafe")

    def _run_weighted_compiled(self, divisor: float, weights: NDArray[np.float64]) -> None:
        assert self._compiled is not None
        addends, targets = self._compiled
        kept = weights != 0
        if kept.any():
            first = self._addends[0]
            sum_slices(addends[kept], targets, first.dtype.char, 0, first.size, divisor, weights[kept])
        else:
            for target in self._targets:
                target[:] = 0

    def _run_weighted(self, divisor: float, weights: Sequence[float]) -> None:
        accumulator = accumulator_dtype(self._addends[0].dtype)
        length = BLOCK_BYTES // accumulator.itemsize
        work, wide = np.empty((2, min(length, self._addends[0].size)), accumulator)
        for addends, total, targets in self._blocks(work):
            part = wide[: total.size]
            kept = [
                (addend, accumulator.type(weight)) for addend, weight in zip(addends, weights, strict=True) if weight
            ]
            total[:] = 0
            for place, (addend, weight) in enumerate(kept):
                np.multiply(addend, weight, out=part if place else total)
                if place:
                    np.add(total, part, out=total)
            np.divide(total, divisor, out=total)
            for target in targets:
                np.copyto(target, total, casting="unsafe")


class Exchange:
    """Sums of small arrays and their headers in memory that ranks share: each lays them down in a place of its own.

    There are two places for each, for even and for odd numbers. numbers: of each rank, (1,) int64, the last one for
    which it has laid them down. source: float64, what rank `own` lays down: its header, and its array behind. places:
    of each rank, like `source`, even and odd. headers, addends: views of these. target: (n,), gets the sum; the
    beginning of `source` that of the headers.
    """

    __slots__ = ("_compiled", "_headers", "_kept", "_sum", "_summations", "_where", "lay_down")

    def __init__(
        self,
        numbers: Sequence[NDArray[np.int64]],
        own: int,
        source: NDArray[np.float64],
        places: Sequence[Sequence[NDArray[np.float64]]],
        headers: Sequence[Sequence[NDArray[np.float64]]],
        addends: Sequence[Sequence[NDArray[Any]]],
        target: NDArray[Any],
    ) -> None:
        self._headers = headers
        self._summations = [Summation(of_turn, [target]) for of_turn in addends]
        reals = _as_reals(target)
        self._compiled = reals.dtype.char in "fd" and reals.size > 0
        wanted = [[_as_reals(one) for one in of_turn] if self._compiled else [] for of_turn in addends]
        lay_down, self._sum, kept = prepare_exchange(numbers, own, source, places, headers[0][0].size, wanted, reals)
        self._where = addresses([kept[0]])[0].item()
        self._kept = kept, numbers, places, source
        self.lay_down = partial(lay_down, self._where)
        """Header and array of this rank, with their number."""

    def sum(self, number: int, divisor: float | None, looks: int = 0) -> bool:
        """Whether all ranks have reached this number, and the sum is there. divisor: None for the weighted mean.

        looks: how often to look for a number that is not there.
        """
        found = self._sum(self._where, number, 0.0 if divisor is None else divisor, looks)
        if found == 1 and self._compiled:
            return True
        if found == 0:
            return False
        if divisor is None:
            self._summations[number & 1].average(weights(self._headers[number & 1]))
        else:
            self._summations[number & 1].run(divisor)
        return True


_UFUNCS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def combine(operation: str, addends: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
    """`out` = two or more flat arrays combined from left to right, in their dtype. It is none of them.

    operation: as MPI names it.
    """
    ufunc = _UFUNCS[operation]
    with np.errstate(all="ignore"):
        ufunc(addends[0], addends[1], out=out)
        for addend in addends[2:]:
            ufunc(out, addend, out=out)


def _as_reals(array: NDArray[Any]) -> NDArray[Any]:
    """Complex numbers as pairs of real ones: NumPy would multiply them with 1 / divisor, which rounds twice."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def _sum(block: Block, divisor: float) -> None:
    """The fewest passes: the last one that reads addends may already write a target, which can be an addend itself."""
    addends, total, targets = block
    first = targets[0]
    partial = addends[0]
    for addend in addends[1:-1]:
        partial = np.add(partial, addend, out=total)
    if len(addends) > 1:
        partial = np.add(partial, addends[-1], out=first if divisor == 1 else total)
    if divisor != 1:
        np.divide(partial, divisor, out=first)
    elif partial is not first:
        np.copyto(first, partial)
    for target in targets[1:]:
        np.copyto(target, first)


def check_divisor(dtype: np.dtype[Any], divisor: float | None) -> None:
    """Raises TypeError when a sum of integers is to be divided."""
    if divisor != 1 and dtype.kind in "iu":
        by = "the ranks' weights" if divisor is None else divisor
        raise TypeError(
            f"transport: a sum of {dtype.name} cannot be divided by {by}; use a floating dtype or divisor=1"
        )


def sum_headers(headers: Iterable[NDArray[np.float64]], out: NDArray[np.float64]) -> None:
    """`out` = the sum of the ranks' headers, in rank order. `out` is none of them."""
    out[:] = 0
    for header in headers:
        np.add(out, header, out=out)


class Shards:
    """One rank's shards on their way into a sum: they come in `array` one after another.

    array: shape (n,). slots: as many arrays of shape (n,) as `Order.slots` says, of the dtype in which that of `array`
    is summed. merges: of this rank, `Order.own`.
    """

    def __init__(self, array: NDArray[Any], slots: Sequence[NDArray[Any]], merges: Sequence[int]) -> None:
        self._steps: list[tuple[Summation | None, list[float]]] = []  # with room for the addends' weights
        self._next = 0
        depth, last_stays = 0, accumulator_dtype(array.dtype) == array.dtype
        for place, count in enumerate(merges):
            if count:
                # A sum of two is the same either way round, so these additions are a chain that begins at the top.
                top = slots[depth - count : depth][::-1]
                depth -= count
                self._steps.append((Summation([top[0], array, *top[1:]], [slots[depth]]), [1.0] * (count + 1)))
                depth += 1
            elif last_stays and place == len(merges) - 1:
                self._steps.append((None, []))
            else:
                self._steps.append((Summation([array], [slots[depth]]), [1.0]))
                depth += 1
        self._values = array
        self.parts = [*slots[:depth], *([array] if self._steps[-1][0] is None else [])]
        """What is left when all have come; their weights are in it."""

    def restart(self) -> None:
        """The next one to come is the first."""
        self._next = 0

    def add(self, weight: float = 1.0) -> None:
        """Another one is in `array`, which is free then, but for the last one. It counts `weight` times."""
        step, ones = self._steps[self._next]
        self._next = (self._next + 1) % len(self._steps)
        if weight == 1:
            if step is not None:
                step.run()
        elif step is None:
            Summation([self._values], [self._values]).run(1.0, [weight])
        else:
            step.run(1.0, [*ones[:1], weight, *ones[2:]] if len(ones) > 1 else [weight])


def weighing(weights: Sequence[float], weighed: bool = False) -> tuple[float, Sequence[float] | None]:
    """What to divide a sum by, and what to multiply addends with first, for a mean weighted by one number a rank.

    Equal weights give the bits of a plain mean. weighed: what is added has been multiplied already.
    """
    if weighed:
        return sum(weights), None
    equal = weights.count(weights[0]) == len(weights)
    return (len(weights), None) if equal else (sum(weights), weights)


def _chain(merges: Sequence[int]) -> list[int] | None:
    """The places of the addends such that adding them from left to right is what the merges say, or None."""
    stack: list[list[int]] = []
    for place, count in enumerate(merges):
        stack.append([place])
        for _ in range(count):
            right, left = stack.pop(), stack.pop()
            if len(left) > 1 and len(right) > 1:
                return None
            stack.append(left + right if len(right) == 1 else right + left)
    return stack[0] if len(stack) == 1 else None


def _depth(merges: Sequence[int]) -> int:
    """Rows that `Summation` needs for the sums of a tree."""
    depth, deepest = 0, 1
    for count in merges:
        depth += 1 - count
        deepest = max(deepest, depth)
    return deepest
