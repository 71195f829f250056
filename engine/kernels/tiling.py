"""How kernels cut their work into tiles for the vector registers: which sizes, and the step for each of them."""

from functools import lru_cache
from typing import Any

import numpy as np

from engine.kernels.jit import helper
from engine.kernels.language import array_at, move, transpose_tile

Array = np.ndarray


def tiles(length: int, overlap: bool, prices: dict[int, float]) -> Array:
    """(2, number): starts and sizes of the tiles that a line is computed in, the cheapest choice by measured cost.

    ``prices`` are those of the sizes there are, see `engine.kernels.vectors`. With ``overlap`` the last tile may begin
    inside the one before it and compute some of its elements again.
    """
    return _tiles(length, overlap, tuple(prices.items()))


@lru_cache(1024)
def _tiles(length: int, overlap: bool, prices: tuple[tuple[int, float], ...]) -> Array:
    best: list[tuple[float, list[tuple[int, int]]]] = [(0.0, [])]  # for the first 0, 1, 2 ... elements
    for end in range(1, length + 1):
        choices = []
        for size, price in prices:
            reached = range(end - size, end if overlap and end == length else end - size + 1)
            if size <= end:
                choices += [(best[at][0] + price, [*best[at][1], (end - size, size)]) for at in reached]
        best.append(min(choices, key=lambda choice: choice[0]))
    return np.array(best[length][1], np.int64).reshape(-1, 2).T.copy()


@helper
def elements(strides: Any, item: int) -> tuple[int, int, int, int, int]:
    """Strides of an array with five axes in elements of so many bytes."""
    return strides[0] // item, strides[1] // item, strides[2] // item, strides[3] // item, strides[4] // item


# 16 images of 28x28x64 floats: 0.24 ms, element by element 0.6, numpy.ascontiguousarray 1.1.
@helper
def turn(
    like: Any, item: int, source: int, source_step: int, target: int, target_step: int, rows: int, columns: int
) -> None:
    """``target[j * target_step + i] = source[i * source_step + j]``, i below ``rows`` and j below ``columns``.

    The last blocks begin inside the ones before them.
    """
    if rows >= 8 and columns >= 8:
        for block in range(0, rows, 8):
            i = min(block, rows - 8)
            for other in range(0, columns, 8):
                j = min(other, columns - 8)
                start, goal = source + (i * source_step + j) * item, target + (j * target_step + i) * item
                transpose_tile(8, like, start, source_step, goal, target_step)
    elif rows >= 4 and columns >= 4:
        for block in range(0, rows, 4):
            i = min(block, rows - 4)
            for other in range(0, columns, 4):
                j = min(other, columns - 4)
                start, goal = source + (i * source_step + j) * item, target + (j * target_step + i) * item
                transpose_tile(4, like, start, source_step, goal, target_step)
    else:
        for i in range(rows):
            for j in range(columns):
                array_at(target, j * target_step + i, 1, like)[0] = array_at(source, i * source_step + j, 1, like)[0]


@helper
def move_lines(
    step: int,
    like: Any,
    target: int,
    target_line: int,
    source: int,
    source_line: int,
    lines: int,
    count: int,
    item: int,
) -> None:
    """Copies lines of ``count`` elements that are ``step``, 1 or 2, apart; the last ones of a line begin inside those
    before them. Lines are so many elements apart.
    """
    on, by = target_line * item, source_line * item
    if count >= 16:
        for line in range(lines):
            to, start = target + line * on, source + line * by
            for first in range(0, count, 16):
                w = min(first, count - 16)
                move(16, step, like, to + w * item, start + step * w * item)
    elif count >= 8:
        for line in range(lines):
            to, start = target + line * on, source + line * by
            move(8, step, like, to, start)
            move(8, step, like, to + (count - 8) * item, start + step * (count - 8) * item)
    elif count >= 4:
        for line in range(lines):
            to, start = target + line * on, source + line * by
            move(4, step, like, to, start)
            move(4, step, like, to + (count - 4) * item, start + step * (count - 4) * item)
    else:
        for line in range(lines):
            for w in range(count):
                to = target + line * on + w * item
                array_at(to, 0, 1, like)[0] = array_at(source, line * source_line + step * w, 1, like)[0]
