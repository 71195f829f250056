"""The sum of several ranks' slices, for transports whose ranks see each other's memory, and of a matrix's columns, for
checksums.

Every element of a sum of slices is ``(w0 a0 + w1 a1 + ... + wk ak) / divisor``, added in the order of the table and
divided once, each step rounded; weights of 1 leave the bits of a plain sum. The bits depend neither on where a slice
begins nor on its length, on who computes it, or on the CPU.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from engine.kernels.jit import DTYPES, helper, kernel
from engine.kernels.language import (
    Read1,
    ReadFloat64,
    ReadInt64,
    announce,
    array_at,
    array_of,
    number_at,
    real,
    relax,
    sum_vectors,
)
from engine.kernels.vectors import VECTOR

Array = np.ndarray
_EMPTY = {char: np.empty(0, char) for char in DTYPES}  # tells the compiled function its dtype


def addresses(arrays: Sequence[Array] | Array) -> Array:
    """Table (k,) int64 of where flat arrays begin, or the rows of one array (k, n), made once a bucket. The caller
    keeps the arrays alive meanwhile.

    Raises ValueError unless all are contiguous, one-dimensional, writable, and of one dtype and length.
    """
    first = arrays[0]
    if isinstance(arrays, np.ndarray) and first.ndim == 1 and first.flags.carray:
        return arrays.ctypes.data + arrays.strides[0] * np.arange(len(arrays), dtype=np.int64)
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


def prepare_exchange(
    numbers: Sequence[Array],
    own: int,
    source: Array,
    places: Sequence[Sequence[Array]],
    header: int,
    addends: Sequence[Sequence[Array]],
    target: Array,
) -> tuple[Callable[[int, int], None], Callable[[int, int, float, int], int], tuple[Array, Array]]:
    """Sums of small arrays in memory that several processes see: each lays down a header and an array in its place.

    numbers: (1,) int64 of each process, that only grow. source: float64, what this one, number ``own``, lays down: its
    header, of so many float64, and its array behind. places: where each lays down what has an even number, and where
    what has an odd one. addends: (n,) arrays in there, summed into ``target``, as headers are into the beginning of
    ``source``; empty where somebody else sums them.

    Gives two functions, and what the caller keeps as long as these, with everything given: the address of the first of
    it is their first argument. The first function lays down, and says so by a number. The second takes the number that
    all must have reached; the divisor, or 0 for the mean if the first numbers of all headers, the weights, are equal;
    how often to look at a number that is not there yet. It gives ``~place`` (< 0) of the first that has not come, and
    nothing was done; 1 where all is summed; 2 where only the headers are, since weights differ or there are no addends.

    One call each instead of a step in Python for each process: laying down 1 KiB takes 0.06 us and the sum of one 0.1
    where everything is there; in Python 0.6 and 2.
    """
    arrays = [addresses(of_turn) for of_turn in addends if of_turn]
    char, count = (target.dtype.char, target.size) if arrays else ("d", 0)
    begins = [array.__array_interface__["data"][0] for array in (source, target, *numbers, *places[0], *places[1])]
    ones = np.ones(len(numbers), char)
    fixed = [len(numbers), own, source.size, header, count, ones.__array_interface__["data"][0], *begins]
    table = np.concatenate([np.array(fixed, np.int64), *arrays])
    return _lay_down[char], _sum_when_there[char], (table, ones)


def prepare_columns(sums: Array) -> Callable[[int, int], None]:
    """A function of an address and of how many rows of int64 lie there: adds their columns to ``sums``, flat int64,
    modulo 2**64. The caller keeps both alive.

    1 MiB in the level-2 cache of a Xeon with AVX-512: 65 GB/s, NumPy's sum 33.
    """
    return partial(_compiled_add_columns(), sums.ctypes.data, sums.size)


@cache
def _compiled_add_columns() -> Any:
    return _add_columns["d"]


@helper
def _sum_range(
    sources: Array, weights: Array, destinations: Array, like: Array, start: int, count: int, divisor: float
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
    _sum_range(sources, weights, destinations, like, start, count, divisor)


# Both read a table of int64: how many processes, which one this is, words of a place, of a header, elements; where
# ones, source and target lie, and each one's number, even and odd place, even and odd addends.
@kernel(brief=True)
def _lay_down(where: int, number: int) -> None:
    ranks, own, words = number_at(where), number_at(where + 8), number_at(where + 16)
    table = array_of(where, 8 + 3 * ranks, np.int64)
    place = array_of(table[8 + ranks + (number & 1) * ranks + own], words, np.int64)
    source = array_of(table[6], words, np.int64)
    for word in range(words):
        place[word] = source[word]
    announce(table[8 + own], number)


@kernel(brief=True)
def _sum_when_there(where: int, number: int, divisor: float, looks: int) -> int:
    ranks = number_at(where)
    table = array_of(where, 8 + 5 * ranks, np.int64)
    for rank in range(ranks):
        while number_at(table[8 + rank]) < number:
            if looks == 0:
                return ~rank
            looks -= 1
            relax()
    header, count, ones = table[3], table[4], array_of(table[5], ranks, real)
    total = array_of(table[6], header, np.float64)
    odd = (number & 1) * ranks
    places = table[8 + ranks + odd : 8 + 2 * ranks + odd]
    for word in range(header):
        value = 0.0
        for rank in range(ranks):
            value += array_of(places[rank], header, np.float64)[word]
        total[word] = value
    if count == 0:
        return 2
    if divisor == 0:
        first = array_of(places[0], 1, np.float64)[0]
        for rank in range(1, ranks):
            if array_of(places[rank], 1, np.float64)[0] != first:
                return 2
        divisor = float(ranks)
    _sum_range(table[8 + 3 * ranks + odd : 8 + 4 * ranks + odd], ones, table[7:8], ones, 0, count, divisor)
    return 1


@kernel
def _add_columns(sums: int, columns: int, matrix: int, rows: int) -> None:
    total = array_of(sums, columns, np.int64)
    together = rows - rows % 8  # so many rows at a time, or most of the time goes into the sums
    for row in range(0, together, 8):
        at = matrix + 8 * columns * row
        a, b = array_of(at, columns, np.int64), array_of(at + 8 * columns, columns, np.int64)
        c, d = array_of(at + 16 * columns, columns, np.int64), array_of(at + 24 * columns, columns, np.int64)
        e, f = array_of(at + 32 * columns, columns, np.int64), array_of(at + 40 * columns, columns, np.int64)
        g, h = array_of(at + 48 * columns, columns, np.int64), array_of(at + 56 * columns, columns, np.int64)
        for column in range(columns):
            total[column] += (
                a[column] + b[column] + c[column] + d[column] + e[column] + f[column] + g[column] + h[column]
            )
    for row in range(together, rows):
        a = array_of(matrix + 8 * columns * row, columns, np.int64)
        for column in range(columns):
            total[column] += a[column]
