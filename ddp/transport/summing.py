"""Adding up ranks' arrays, element by element in the order of `ddp.transport.order`, then one division, one rounding.

float32 and float64 go through a compiled loop (`engine.ops.reduce.kernels.slices`), other dtypes through NumPy, in
blocks that stay in the cache between its passes; so do trees that are no chain of additions. All give the same bits.
What can be prepared is prepared when a buffer is allocated, so that a round costs nothing but the arithmetic.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddp.transport.base import accumulator_dtype
from engine.ops.reduce.kernels.slices import addresses, prepare_sum, sum_slices

# Bytes of one operand of a block. Sum and average of two ranks' 4 MiB, EPYC with 1 MiB of L2 cache, ms: 16 KiB 0.35 and
# 0.47, 32 KiB 0.25 and 0.31, 64 KiB 0.19 and 0.24, 128 KiB 0.12 and 0.21, 256 KiB 0.13 and 0.21.
BLOCK_BYTES = 128 * 1024


class Block(NamedTuple):
    """Views of the same elements: one addend per rank, in rank order; room for their sum; the places that want it."""

    addends: tuple[NDArray[Any], ...]
    total: NDArray[Any]
    targets: tuple[NDArray[Any], ...]


class Summation:
    """Sums fixed slices of fixed arrays, as often as asked.

    addends: one array of shape (n,) per rank, in rank order, all of one dtype, or of that in which it is summed; or the
    rows of one array (ranks, n), for which nothing is done rank by rank.
    targets: arrays of shape (n,) that receive the result; they may be addends. merges: in which order parts of a tree
    are added, whose weights are in them already; without, addends are added from left to right. Where the merges leave
    several sums, each has one target.
    """

    __slots__ = ("_addends", "_compiled", "_merges", "_plain", "_targets", "_wide", "_work", "weighed")

    def __init__(
        self,
        addends: Sequence[NDArray[Any]] | NDArray[Any],
        targets: Sequence[NDArray[Any]],
        merges: Sequence[int] | None = None,
    ) -> None:
        self.weighed = merges is not None
        chain = None if merges is None else _chain(merges)
        if chain is not None:
            addends, merges = [addends[place] for place in chain], None
        self._merges = merges
        self._addends: Sequence[NDArray[Any]] | NDArray[Any] = (
            as_reals(addends) if isinstance(addends, np.ndarray) else tuple(map(as_reals, addends))
        )
        self._targets = tuple(map(as_reals, targets))
        addends, targets = self._addends, self._targets
        dtypes = [addends.dtype] if isinstance(addends, np.ndarray) else [one.dtype for one in addends]
        dtype = min(dtypes, key=lambda dtype: dtype.itemsize)
        accumulator = accumulator_dtype(dtype)
        if merges is not None:
            depth = _depth(merges)
            length = min(addends[0].size, BLOCK_BYTES // accumulator.itemsize)
            self._work = np.empty((depth, length), accumulator)
            self._compiled = self._plain = None
            return
        # Average of two ranks' 64 KiB in µs, compiled and not: 3.0 and 10.5; of 4 MiB: 160 and 470.
        # One addend is no sum: what NumPy does with it is as fast, and no program alone waits for this kernel.
        dtypes += [one.dtype for one in targets]
        worth = len(addends) > 1 and dtype.char in "fd" and all(one == dtype for one in dtypes)
        self._compiled = (addresses(addends), addresses(targets)) if worth else None
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
        elif len(self._addends) == 1 and divisor == 1 and not self._wide.size:
            with np.errstate(all="ignore"):
                for target in self._targets:  # a copy reads nothing again that a block would keep in the cache
                    np.copyto(target, self._addends[0])
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


UFUNCS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def combine(
    operation: str, addends: Sequence[NDArray[Any]], out: NDArray[Any], work: NDArray[Any] | None = None
) -> None:
    """`out` = two or more flat arrays combined from left to right, in their dtype.

    operation: as MPI names it. work: takes what is combined before the last one, and may be the first or second of
    them; then `out` may be any. Without, it is `out`, which may be the first or second, or none.
    """
    ufunc, total = UFUNCS[operation], addends[0]
    with np.errstate(all="ignore"):
        for addend in addends[1:-1]:
            total = ufunc(total, addend, out=out if work is None else work)
        ufunc(total, addends[-1], out=out)


def as_reals(array: NDArray[Any]) -> NDArray[Any]:
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
