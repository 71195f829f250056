"""Matrix product for CPUs with AVX-512: packed factors, and tiles of the product summed in registers.

The right factor is packed a panel of columns at a time, the left one whole or not at all (`_is_read_in_place`). Each
element is one chain of fused multiply-adds, so its bits depend on its row and its column alone: not on the tile, on the
number of threads or rows, or on what is packed.

One thread, float32, GFLOP/s, here, by OpenBLAS with its AVX-512 kernels, and with those for AVX2 that it uses on CPUs
it does not know: 1024 x 128 x 512: 251, 241, 129; 128 x 1024 x 1024: 244, 202, 132; 32 x 128 x 512: 165, 106, 104.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import (
    ReadInt64,
    ReadStrided2,
    Write1,
    WriteStrided2,
    address,
    array_at,
    multiply_tile,
    real,
)
from engine.kernels.tiling import move_lines, tiles, turn
from engine.kernels.vectors import tile_prices, vector_bytes
from engine.sharing import threads

Array = np.ndarray
Recipe = tuple[Array, Array, int, int]

FROM = 1 << 20  # multiplications from which packing pays
_SHARED_BY_BLAS = 1 << 19  # from which OpenBLAS takes all its threads, which then spin beside ours
# From which packing pays where the right factor lies by columns, as a weight in `linear`, unless OpenBLAS has a kernel
# for a result of so few elements (for other factors it has one up to a million multiplications). Packed and OpenBLAS's,
# µs, one thread, Zen 4: 16x64x256 8.2 and 13.5, 32x128x128 13.1 and 18.5, 64x64x64 7.6 and 9.3; 8x128x128 5.7 and 3.2.
_TURNED_FROM = 1 << 18
_SMALL_RESULT = 1200
LEAST = 8  # rows and columns that are worth a product of their own
_PASSING, _PACKING, _PACKED = range(3)  # panels of the right factor: each into the same place; all, and no more; are
# Of a left factor that lies by its depth: packed tile by tile, each of its lines would be on a page of its own.
_ROWS_AT_ONCE = 64
_WAY = 4096  # bytes of a way of a core's first-level cache: what lies as far apart is in one of its sets
# Of a panel of the right factor: 128 KiB of float32, which stay in a core's second-level cache beside lines of the left
# one. A step of an LSTM of width 128, 2,800 rows: 45.3 ms with twice as many, 43.7 so; products alone within 2 %.
_DEPTH = 1024


def least(turned: bool, results: int) -> int:
    """Multiplications from which :func:`serves` may say yes: fewer where the BLAS has threads that would spin.

    turned: the right factor lies by columns. results: elements of the product.
    100 layers of 128 x 128, 32 rows, on two busy cores: two threads took ten times the time of one.
    """
    if turned and results > _SMALL_RESULT:
        return _TURNED_FROM
    return FROM if threads.usable_threads() == 1 else _SHARED_BY_BLAS


def serves(a: Array, b: Array) -> bool:
    """Whether :func:`multiply` is the faster one for a @ b; matrices of float32 or float64 to which it applies."""
    return (
        a.size * b.shape[1] >= least(b.strides[0] == b.itemsize, a.shape[0] * b.shape[1])
        and vector_bytes() == 64
        and a.dtype is b.dtype
        and a.dtype.char in "fd"
        and min(a.shape[0], b.shape[1]) >= LEAST
        and a.itemsize in a.strides
        and b.itemsize in b.strides
    )


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b, C-contiguous, for two matrices that are contiguous along one axis at least."""
    rows, columns = a.shape[0], b.shape[1]
    out = np.empty((rows, columns), a.dtype) if out is None else out
    work = rows * a.shape[1] * columns // threads.PRODUCTS
    if threads.usable_threads() == 1:
        _product(a, b, out)
    elif rows > columns:
        parts = threads.pieces(rows, max(LEAST, FROM // (a.shape[1] * columns)))
        threads.share(lambda part: _product(a[part], b, out[part]), parts, work)
    else:
        parts = threads.pieces(columns, max(64, FROM // (a.shape[1] * rows)))
        threads.share(lambda part: _product(a, b[:, part], out[:, part]), parts, work)
    return out


def dot(a: Array, b: Array) -> Array:
    """``a.dot(b)`` of two matrices, by :func:`multiply` where that is faster."""
    return multiply(a, b) if a.size * b.shape[1] >= _TURNED_FROM and serves(a, b) else by_blas(a, b)


def by_blas(a: Array, b: Array) -> Array:
    """``a.dot(b)`` of two matrices, without a copy of one that has gaps between its rows or columns: np.dot copies it,
    np.matmul reads it as it lies (and has a slow loop of its own for what BLAS cannot read).
    """
    if (a.flags.forc and b.flags.forc) or not (_readable(a) and _readable(b)):
        return a.dot(b)
    return np.matmul(a, b)


def _readable(a: Array) -> bool:
    """Whether BLAS can read a matrix: one stride is that of neighbours, the other a leading dimension."""
    (rows, columns), (down, across), item = a.shape, a.strides, a.itemsize
    if across == item:
        return down % item == 0 and down >= columns * item
    return down == item and across % item == 0 and across >= rows * item


class Packed:
    """A right factor (depth, columns) that many left ones meet, packed once: the steps of a recurrence.

    128 x 512, 100 rows: a product 47 to 36 µs. Bits are those of :func:`multiply`.
    """

    def __init__(self, b: Array) -> None:
        self._shape = depth, columns = b.shape
        across = 2 * vector_bytes() // b.itemsize
        self._panels = np.empty(depth * -(-columns // across) * across, b.dtype)
        self._steps = (b.itemsize * depth, b.itemsize), b.strides, b.itemsize * columns, b.dtype
        self._run = _multiply[b.dtype.char]
        numbers, _, _, _ = _recipe((0, depth), columns, *self._steps, _PACKING)
        self._nothing = b[:0]
        self._run(
            self._nothing, b, np.empty((0, 0), b.dtype), self._panels[:0], self._panels, numbers, np.empty(0, np.int64)
        )

    def of_rows(self, rows: int) -> Callable[[Array, Array], None]:
        """A function that writes the product of its first argument, of so many rows, to its second, both C-contiguous,
        on the thread that calls.
        """
        numbers, line, packed, _ = _recipe((rows, self._shape[0]), self._shape[1], *self._steps, _PACKED)

        def multiply(a: Array, out: Array) -> None:
            self._run(a, self._nothing, out, np.empty(packed, a.dtype), self._panels, numbers, line)

        return multiply


@lru_cache(4096)
def _recipe(
    shape: tuple[int, int],
    columns: int,
    a_strides: tuple[int, int],
    b_strides: tuple[int, int],
    out_stride: int,
    dtype: np.dtype,
    state: int,
) -> Recipe:
    """(numbers, line) for the kernel, and the elements of the left factor's and of a panel's packed form."""
    (rows, depth), item = shape, dtype.itemsize
    steps = [stride // item for stride in (*a_strides, *b_strides, out_stride)]
    vector, deepest = vector_bytes() // item, min(depth, _DEPTH)
    in_place = _is_read_in_place(a_strides, item)
    numbers = np.array([depth, columns, *steps, vector, item, _DEPTH, state, _ROWS_AT_ONCE, in_place], np.int64)
    packed = 0 if in_place else rows * deepest
    return numbers, tiles(rows, False, tile_prices(2)).reshape(-1), packed, 2 * vector * deepest


def _is_read_in_place(strides: tuple[int, int], item: int) -> bool:
    """Whether a left factor's rows are read where they lie: not across them, and not where the first cache would hold
    lines of few of them at once.

    Packed and in place, µs: 2800x512x128 4000 and 3290, 512x512x128 632 and 588, 2048x64x64 169 and 153, 100x512x128
    128 and 121, 2800x128x512 3700 and 3750; rows 4096 bytes apart, 128x1024x1024, 2550 and 3250.
    """
    return strides[1] == item and strides[0] % _WAY != 0


def _product(a: Array, b: Array, out: Array) -> None:
    recipe = _recipe(a.shape, b.shape[1], a.strides, b.strides, out.strides[0], a.dtype, _PASSING)
    numbers, line, packed, panel = recipe
    room = np.empty(packed + panel, a.dtype)
    _multiply[a.dtype.char](a, b, out, room[:packed], room[packed:], numbers, line)


@kernel
def _multiply(
    left_factor: ReadStrided2,
    right_factor: ReadStrided2,
    out: WriteStrided2,
    packed: Write1,
    panels: Write1,
    numbers: ReadInt64,
    line: ReadInt64,
) -> None:
    a, b, out_at = address(left_factor), address(right_factor), address(out)
    depth, columns = numbers[0], numbers[1]
    a_row, a_column, b_row, b_column, out_row = numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]
    vector, item, deepest, state, rows_at_once = numbers[7], numbers[8], numbers[9], numbers[10], numbers[11]
    in_place = numbers[12] != 0
    across = 2 * vector
    whole = (columns + across - 1) // across * across  # columns of all panels
    scratch = np.empty(14 * across, packed.dtype)
    packed_at = address(packed)
    scratch_at = address(scratch)
    number = line.size // 2
    for first in range(0, depth, deepest):
        count = min(deepest, depth - first)
        step = count if a_column == 1 else rows_at_once
        for begin in range(0, 0 if in_place else count, step):  # each tile's rows as columns next to each other
            for t in range(number):
                at, height = line[t], line[number + t]
                source_at = a + (at * a_row + (first + begin) * a_column) * item
                goal = packed_at + (at * count + begin * height) * item
                if a_column == 1:
                    turn(packed, item, source_at, a_row, goal, height, height, count)
                    continue
                few = min(step, count - begin)
                move_lines(1, packed, goal, height, source_at, a_column, few, height, item)
        for column in range(0, columns, across):
            here = min(across, columns - column)
            width = vector if here <= vector else across
            start = first * b_row + column * b_column
            panel = panels if state == 0 else panels[first * whole + column * count :]
            panel_at = address(panel)
            if state != 2 and here < width:
                panel[: count * width] = real(0.0)
            if state == 2:
                pass
            elif b_column == 1:
                move_lines(1, packed, panel_at, width, b + start * item, b_row, count, here, item)
            else:
                turn(packed, item, b + start * item, b_column, panel_at, width, here, count)
            for t in range(number):
                at, height = line[t], line[number + t]
                to, to_step = out_at + (at * out_row + column) * item, out_row
                if here < width:
                    to, to_step = scratch_at, width
                    for r in range(height):
                        result = array_at(out_at, (at + r) * out_row + column, here, packed)
                        for j in range(here):
                            scratch[r * width + j] = result[j]
                left, a_step, a_steps = packed_at + at * count * item, 1, (0, 0, height)
                if in_place:
                    left, a_step, a_steps = a + (at * a_row + first) * item, a_row, (0, 0, 1)
                wide, add, b_steps, counts = width > vector, first > 0, (0, 0, width), (1, 1, count)
                multiply_tile(height, wide, packed, to, to_step, add, left, a_step, a_steps, panel_at, b_steps, counts)
                if here < width:
                    for r in range(height):
                        result = array_at(out_at, (at + r) * out_row + column, here, packed)
                        for j in range(here):
                            result[j] = scratch[r * width + j]
