"""The one place that knows in which order ranks are added: rank order, element by element, then one division.

float32 and float64 go through a compiled loop (`engine.kernels.reduce`), other dtypes through NumPy, in blocks that
stay in the cache between its passes. Both give the same bits. What can be prepared is prepared when a buffer is
allocated, so that a round costs nothing but the arithmetic.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddp.transport.base import accumulator_dtype
from engine.kernels.reduce import addresses, prepare_sum, sum_slices

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

    addends: one array of shape (n,) per rank, in rank order, all of one dtype; the first may instead be the sum of
    earlier ranks, in the dtype in which they are summed. targets: arrays of shape (n,) that receive the result; they
    may be addends.
    """

    __slots__ = ("_addends", "_compiled", "_plain", "_targets", "_wide", "_work")

    def __init__(self, addends: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]) -> None:
        self._addends, self._targets = tuple(map(_as_reals, addends)), tuple(map(_as_reals, targets))
        addends, targets = self._addends, self._targets
        dtype = addends[-1].dtype
        accumulator = accumulator_dtype(dtype)
        # Average of two ranks' 64 KiB in µs, compiled and not: 3.0 and 10.5; of 4 MiB: 160 and 470.
        self._compiled = (addresses(addends), addresses(targets)) if dtype.char in "fd" else None
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
        """Write the mean weighted by one number a rank to every target. Equal weights give the bits of a plain mean."""
        if weights.count(weights[0]) == len(weights):
            self.run(len(weights))
        else:
            self.run(sum(weights), weights)

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
            total[:] = 0
            for addend, weight in zip(addends, weights, strict=True):
                if weight:
                    np.multiply(addend, accumulator.type(weight), out=part)
                    np.add(total, part, out=total)
            np.divide(total, divisor, out=total)
            for target in targets:
                np.copyto(target, total, casting="unsafe")


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


def sum_headers(headers: Iterable[NDArray[np.float64]], out: NDArray[np.float64]) -> None:
    """`out` = the sum of the ranks' headers, in rank order. `out` is none of them."""
    out[:] = 0
    for header in headers:
        np.add(out, header, out=out)
