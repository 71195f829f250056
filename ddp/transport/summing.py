"""The one place that knows in which order ranks are added: rank order, element by element, then one division.

Works in blocks that stay in the cache between the passes NumPy makes over them. The views of a block are cut once, when
a buffer is allocated, so that a round costs nothing but the arithmetic.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddp.transport.base import accumulator_dtype

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

    addends: one array of shape (n,) per rank, in rank order. targets: arrays of shape (n,) that receive the result;
    they may be addends. All of one dtype.
    """

    __slots__ = ("_blocks", "_sum_block", "_wide")

    def __init__(self, addends: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]) -> None:
        dtype, count = addends[0].dtype, addends[0].size
        accumulator = accumulator_dtype(dtype)
        length = BLOCK_BYTES // accumulator.itemsize
        total = np.empty(min(count, length), accumulator)
        self._blocks = [
            Block(
                tuple(array[begin : begin + length] for array in addends),
                total[: count - begin],
                tuple(array[begin : begin + length] for array in targets),
            )
            for begin in range(0, count, length)
        ]
        narrow = accumulator != dtype
        self._sum_block = self._sum_narrow if narrow else _sum
        self._wide = np.empty(total.size if narrow else 0, accumulator)

    def run(self, divisor: float = 1.0) -> None:
        """Write the sum of the addends, divided by `divisor`, to every target."""
        # An overflowing gradient is the training script's business (a loss scaler expects it): no warning from in here.
        with np.errstate(all="ignore"):
            for block in self._blocks:
                self._sum_block(block, divisor)

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
