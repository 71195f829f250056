"""The sum of several ranks' slices, for transports whose ranks see each other's memory.

Every element is ``(w0 a0 + w1 a1 + ... + wk ak) / divisor``, added in the order of the table and divided once, each
step rounded; weights of 1 leave the bits of a plain sum. The bits depend neither on where a slice begins nor on its
length, on who computes it, or on the CPU.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from engine.kernels.jit import DTYPES, VECTOR, Read1, ReadFloat64, ReadInt64, array_at, kernel, real, sum_vectors

Array = np.ndarray
_EMPTY = {char: np.empty(0, char) for char in DTYPES}  # tells the compiled function its dtype


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


def sum_slices(
    sources: Array,
    destinations: Array,
    char: str,
    start: int,
    count: int,
    divisor: float = 1.0,
    weights: Array | None = None,
) -> None:
    """Elements ``start .. start + count`` of every destination become the sum of the sources' there, over ``divisor``.

    ``sources`` and ``destinations`` are tables of :func:`addresses` and may be the same table or share arrays, but not
    overlap shifted; ``char`` is the dtype's code, ``"f"`` or ``"d"``. ``weights``, float64 of shape (sources,), is what
    each source is multiplied with first.

    Half of two ranks' arrays on each of two cores, µs: 64 KiB 1.0, 1 MiB 9.0, 4 MiB 40, 16 MiB 260; that is what a core
    takes to read the other core's half. Blocks summed in the level-1 cache took 1.2, 12.4, 52 and 300; NumPy 4 times
    as long.
    """
    _sum_slices[char](
        sources, _ones(sources.size) if weights is None else weights, destinations, _EMPTY[char], start, count, divisor
    )


def prepare_sum(sources: Array, destinations: Array, char: str, count: int) -> Callable[[float], None]:
    """``sum_slices`` of all ``count`` elements, unweighted, as a function of the divisor: 0.15 us less a call."""
    return partial(_sum_slices[char], sources, _ones(sources.size), destinations, _EMPTY[char], 0, count)


@cache
def _ones(count: int) -> Array:
    return np.ones(count)


@kernel
def _sum_slices(
    sources: ReadInt64,
    weights: ReadFloat64,
    destinations: ReadInt64,
    like: Read1,
    start: int,
    count: int,
    divisor: float,
) -> None:
    whole = start + count - count % VECTOR
    for begin in range(start, whole, VECTOR):
        sum_vectors(sources, weights, destinations, begin, like, divisor)
    for begin in range(whole, start + count):
        total = array_at(sources[0], begin, 1, like)[0] * real(weights[0])
        for rank in range(1, sources.size):
            total += array_at(sources[rank], begin, 1, like)[0] * real(weights[rank])
        for rank in range(destinations.size):
            array_at(destinations[rank], begin, 1, like)[0] = total / real(divisor)
