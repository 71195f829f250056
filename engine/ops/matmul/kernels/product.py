"""Matrix product for CPUs with AVX-512: packed factors, and tiles of the product summed in registers.

The left factor is packed whole, the right one a panel of columns at a time. Each element is one chain of fused
multiply-adds, so its bits depend on its row and its column alone: not on the tile, the number of threads or rows.

One thread, float32, GFLOP/s, here, by OpenBLAS with its AVX-512 kernels, and with those for AVX2 that it uses on CPUs
it does not know: 1024 x 128 x 512: 251, 241, 129; 128 x 1024 x 1024: 244, 202, 132; 32 x 128 x 512: 165, 106, 104.
"""

import numpy as np

from engine.kernels.jit import ReadInt64, Write1, address, array_at, kernel, multiply_tile, real
from engine.kernels.tiling import tiles, turn
from engine.kernels.vectors import vector_bytes
from engine.memory import threads

Array = np.ndarray

FROM = 1 << 20  # multiplications from which packing pays
_LEAST = 8  # rows and columns
_DEPTH = 2048  # of a panel of the right factor: 256 KiB of float32, which stay in a core's second-level cache


def serves(a: Array, b: Array) -> bool:
    """Whether :func:`multiply` is the faster one for a @ b; matrices of float32 or float64 to which it applies."""
    return (
        a.shape[0] * a.shape[1] * b.shape[1] >= FROM
        and vector_bytes() == 64
        and a.dtype is b.dtype
        and a.dtype.char in "fd"
        and min(a.shape[0], b.shape[1]) >= _LEAST
        and a.itemsize in a.strides
        and b.itemsize in b.strides
    )


def multiply(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b, C-contiguous, for two matrices that are contiguous along one axis at least."""
    rows, columns = a.shape[0], b.shape[1]
    out = np.empty((rows, columns), a.dtype) if out is None else out
    if threads.usable_threads() == 1:
        _product(a, b, out)
    elif rows > columns:
        parts = threads.pieces(rows, max(_LEAST, FROM // (a.shape[1] * columns)))
        threads.share(lambda part: _product(a[part], b, out[part]), parts)
    else:
        parts = threads.pieces(columns, max(64, FROM // (a.shape[1] * rows)))
        threads.share(lambda part: _product(a, b[:, part], out[:, part]), parts)
    return out


def dot(a: Array, b: Array) -> Array:
    """``a.dot(b)`` of two matrices, by :func:`multiply` where that is faster."""
    return multiply(a, b) if a.shape[0] * a.shape[1] * b.shape[1] >= FROM and serves(a, b) else by_blas(a, b)


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


def _product(a: Array, b: Array, out: Array) -> None:
    (rows, depth), columns = a.shape, b.shape[1]
    steps = [stride // a.itemsize for stride in (*a.strides, *b.strides, out.strides[0])]
    numbers = np.array([depth, columns, *steps, vector_bytes() // a.itemsize, a.itemsize, _DEPTH], np.int64)
    packed = np.empty(rows * min(depth, _DEPTH), a.dtype)
    places = a.ctypes.data, b.ctypes.data, out.ctypes.data
    _multiply[a.dtype.char](*places, packed, numbers, tiles(rows, False).reshape(-1))


@kernel
def _multiply(a: int, b: int, out_at: int, packed: Write1, numbers: ReadInt64, line: ReadInt64) -> None:
    depth, columns = numbers[0], numbers[1]
    a_row, a_column, b_row, b_column, out_row = numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]
    vector, item, deepest = numbers[7], numbers[8], numbers[9]
    across = 2 * vector
    panel = np.empty(min(depth, deepest) * across, packed.dtype)
    scratch = np.empty(14 * across, packed.dtype)
    packed_at, panel_at = address(packed), address(panel)
    scratch_at = address(scratch)
    number = line.size // 2
    for first in range(0, depth, deepest):
        count = min(deepest, depth - first)
        for t in range(number):  # each tile's rows as columns next to each other
            at, height = line[t], line[number + t]
            start = at * a_row + first * a_column
            if a_column == 1:
                goal = packed_at + at * count * item
                turn(packed, item, a + start * item, a_row, goal, height, height, count)
            else:
                for k in range(count):
                    source = array_at(a, start + k * a_column, height, packed)
                    target = packed[at * count + k * height :][:height]
                    for r in range(height):
                        target[r] = source[r]
        for column in range(0, columns, across):
            here = min(across, columns - column)
            width = vector if here <= vector else across
            start = first * b_row + column * b_column
            if here < width:
                panel[:] = real(0.0)
            if b_column == 1:
                for k in range(count):
                    source = array_at(b, start + k * b_row, here, packed)
                    target = panel[k * width :][:here]
                    for j in range(here):
                        target[j] = source[j]
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
                a_steps, b_steps, counts = (0, 0, height), (0, 0, width), (1, 1, count)
                left = packed_at + at * count * item
                multiply_tile(
                    height, width > vector, packed, to, to_step, first > 0, left, 1, a_steps, panel_at, b_steps, counts
                )
                if here < width:
                    for r in range(height):
                        result = array_at(out_at, (at + r) * out_row + column, here, packed)
                        for j in range(here):
                            result[j] = scratch[r * width + j]
