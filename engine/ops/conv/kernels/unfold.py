"""Windows of row-major images as rows, in the memory order of a row-major weight, and back.

Images are (N, C, H, W), rows (N, OH, OW, C * KH * KW), both C-contiguous. Moves are (stride, padding, dilation), a pair
(height, width) each.
"""

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read2, Read4, ReadInt64, Write2, Write4, real

Array = np.ndarray
Pair = tuple[int, int]
Moves = tuple[Pair, Pair, Pair]


def unfold(image: Array, window: Pair, moves: Moves, out: Array) -> None:
    """Fills rows ``out`` with the pixels of their windows, 0 where these reach out."""
    _unfold[image.dtype.char](image, _numbers(window, moves, out.shape), out.reshape(-1, out.shape[3]))


def fold(rows: Array, window: Pair, moves: Moves, out: Array) -> None:
    """The adjoint: fills an image with the sums of its pixels' places in all rows."""
    _fold[rows.dtype.char](rows.reshape(-1, rows.shape[3]), _numbers(window, moves, rows.shape), out)


def _numbers(window: Pair, moves: Moves, rows: tuple[int, ...]) -> Array:
    return np.array([*rows[1:3], *window, *moves[0], *moves[1], *moves[2]], np.int64)


@helper
def _inside(place: int, size: int, window: int, dilation: int) -> tuple[int, int]:
    """The elements of a window that begins at a place which are inside: from the first to below the second."""
    first = max((dilation - 1 - place) // dilation, 0)
    return first, max(min((size - place + dilation - 1) // dilation, window), first)


@kernel
def _unfold(image: Read4, numbers: ReadInt64, out: Write2) -> None:
    batch, channels, height, width = image.shape
    rows, columns, window_h, window_w = numbers[0], numbers[1], numbers[2], numbers[3]
    step_h, step_w, before_h, before_w = numbers[4], numbers[5], numbers[6], numbers[7]
    gap_h, gap_w = numbers[8], numbers[9]
    taps = window_h * window_w
    for n in range(batch):
        for oh in range(rows):
            top = oh * step_h - before_h
            first_i, last_i = _inside(top, height, window_h, gap_h)
            for ow in range(columns):
                left = ow * step_w - before_w
                first_j, last_j = _inside(left, width, window_w, gap_w)
                row = out[(n * rows + oh) * columns + ow]
                if (last_i - first_i) * (last_j - first_j) < taps:
                    row[:] = real(0.0)
                for i in range(first_i, last_i):
                    for j in range(first_j, last_j):
                        at, y, x = i * window_w + j, top + i * gap_h, left + j * gap_w
                        for c in range(channels):
                            row[c * taps + at] = image[n, c, y, x]


@kernel
def _fold(matrix: Read2, numbers: ReadInt64, out: Write4) -> None:
    batch, channels, height, width = out.shape
    rows, columns, window_h, window_w = numbers[0], numbers[1], numbers[2], numbers[3]
    step_h, step_w, before_h, before_w = numbers[4], numbers[5], numbers[6], numbers[7]
    gap_h, gap_w = numbers[8], numbers[9]
    taps = window_h * window_w
    for n in range(batch):
        out[n] = real(0.0)
        for oh in range(rows):
            top = oh * step_h - before_h
            first_i, last_i = _inside(top, height, window_h, gap_h)
            for ow in range(columns):
                left = ow * step_w - before_w
                first_j, last_j = _inside(left, width, window_w, gap_w)
                row = matrix[(n * rows + oh) * columns + ow]
                for i in range(first_i, last_i):
                    for j in range(first_j, last_j):
                        at, y, x = i * window_w + j, top + i * gap_h, left + j * gap_w
                        for c in range(channels):
                            out[n, c, y, x] += row[c * taps + at]
