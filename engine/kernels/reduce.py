"""The sum of several ranks' slices, for transports whose ranks see each other's memory.

Every element is ``(a0 + a1 + ... + ak) / divisor``, added in the order of the table and divided once: the bits depend
neither on where a slice begins nor on its length, on who computes it, or on the CPU.
"""

from collections.abc import Sequence

import numpy as np

from engine.kernels.jit import DTYPES, Read1, ReadInt64, array_at, kernel, real

Array = np.ndarray
_EMPTY = {char: np.empty(0, char) for char in DTYPES}  # tells the compiled function its dtype
BLOCK = 1024  # elements: 4 or 8 KiB, so that the blocks of four float32 sources and their sum fit a 32 KiB cache


def addresses(arrays: Sequence[Array]) -> Array:
    """Table (k,) int64 of where flat arrays begin, made once a bucket. The caller keeps the arrays alive meanwhile.

    Raises ValueError unless all are contiguous, one-dimensional, writable, and of one dtype and length.
    """
    first = arrays[0]
    for place, array in enumerate(arrays):
        if array.ndim != 1 or array.dtype != first.dtype or array.size != first.size:
            raise ValueError(
                f"addresses: array {place} is {array.dtype} of shape {array.shape}, "
                f"expected {first.dtype} of shape ({first.size},) like array 0"
            )
        if not array.flags.carray:
            raise ValueError(f"addresses: array {place} is not contiguous, aligned and writable; pass a flat bucket")
    return np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)


def sum_slices(sources: Array, destinations: Array, char: str, start: int, count: int, divisor: float = 1.0) -> None:
    """Elements ``start .. start + count`` of every destination become the sum of the sources' there, over ``divisor``.

    ``sources`` and ``destinations`` are tables of :func:`addresses` and may be the same table or share arrays, but not
    overlap shifted; ``char`` is the dtype's code, ``"f"`` or ``"d"``.

    16 MiB twice in 1.0 ms one thread, 64 KiB in 1.6 us + call; NumPy in blocks needs 2.8 ms and 10 us.
    """
    _sum_slices[char](sources, destinations, _EMPTY[char], start, count, divisor)


# The sum of a block waits in the level-1 cache while it is written to every destination; sources and destinations may
# be the same memory.
@kernel
def _sum_slices(
    sources: ReadInt64, destinations: ReadInt64, like: Read1, start: int, count: int, divisor: float
) -> None:
    total = np.empty(BLOCK, like.dtype)
    last = sources.size - 1
    for begin in range(start, start + count, BLOCK):
        size = min(BLOCK, start + count - begin)
        first = array_at(sources[0], begin, size, like)
        final = array_at(sources[last], begin, size, like)
        if last == 0:
            for i in range(size):
                total[i] = first[i] / real(divisor)
        elif last == 1:
            for i in range(size):
                total[i] = (first[i] + final[i]) / real(divisor)
        else:
            second = array_at(sources[1], begin, size, like)
            for i in range(size):
                total[i] = first[i] + second[i]
            for rank in range(2, last):
                part = array_at(sources[rank], begin, size, like)
                for i in range(size):
                    total[i] += part[i]
            for i in range(size):
                total[i] = (total[i] + final[i]) / real(divisor)
        for rank in range(destinations.size):
            result = array_at(destinations[rank], begin, size, like)
            for i in range(size):
                result[i] = total[i]
