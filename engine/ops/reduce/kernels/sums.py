"""Sums over axes of an array of any dense layout, float32 or float64.

What lies along the last axes of the memory is added up in vectors, 256 numbers at a time, and these sums in float64;
what lies further apart row by row, in the order in which NumPy adds it. 1024 x 128 floats over the last axis, and over
the first: 7 and 9 µs, numpy.add.reduce 35 and 26.
"""

from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, Read2, Read3, Write1, Write2, flat, real
from engine.ops.matmul.kernels.bias import column_sums
from engine.sharing import threads

Array = np.ndarray
Axes = tuple[int, ...]

_BLOCK = 256
# Elements from which a call costs no more than NumPy's.
_MANY = 4096
_reduce: Any = np.add.reduce  # whose types know no keepdims that is a variable


class _Plan(NamedTuple):
    order: Axes  # of the axes in memory, from the outermost
    sizes: tuple[int, int, int, int]  # there: of what is summed, kept, summed and kept
    left: Axes  # of the axes that are kept
    back: Axes  # in which order these are taken
    shape: Axes  # of the result


def axis_sums(array: Array, axes: Axes, keepdims: bool = False) -> Array:
    """The sum over axes, which are counted from the first, in the array's dtype."""
    plan = None
    if array.size >= _MANY and array.dtype.char in "fd":
        plan = _planned(array.shape, array.strides, array.itemsize, axes, keepdims)
    if plan is None:
        return _reduce(array, axis=axes, dtype=array.dtype, keepdims=keepdims)
    outer, kept, inner, last = plan.sizes
    memory = array.transpose(plan.order)
    if last == 1:
        sums = _sums_of_rows(memory.reshape(outer * kept, inner))
    elif outer * kept == 1:
        sums = column_sums(memory.reshape(inner, last))
    else:
        sums = _sums_of_columns(memory.reshape(outer * kept, inner, last))
    if outer > 1:
        sums = column_sums(sums.reshape(outer, kept * last))
    return sums.reshape(plan.left).transpose(plan.back).reshape(plan.shape)


@lru_cache(4096)
def _planned(shape: Axes, strides: Axes, item: int, axes: Axes, keepdims: bool) -> _Plan | None:
    """How an array is summed, if its memory is dense and what is summed lies in at most two runs of axes."""
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    step = item
    for axis in reversed(order):
        if shape[axis] > 1 and strides[axis] != step:
            return None
        step *= shape[axis]
    gone = set(axes)
    runs = [
        (summed, prod(shape[axis] for axis in run))
        for summed, run in groupby((axis for axis in order if shape[axis] > 1), gone.__contains__)
    ]
    sizes = [1, 1, 1, 1]
    for place, summed in zip((3, 2, 1, 0), (False, True, False, True), strict=True):
        if runs and runs[-1][0] == summed:
            sizes[place] = runs.pop()[1]
    if runs or sizes[0] * sizes[2] == 1:
        return None
    left = [axis for axis in order if axis not in gone]
    back = sorted(range(len(left)), key=left.__getitem__)
    result = tuple(1 if axis in gone else size for axis, size in enumerate(shape) if keepdims or axis not in gone)
    outer, kept, inner, last = sizes
    return _Plan(tuple(order), (outer, kept, inner, last), tuple(shape[axis] for axis in left), tuple(back), result)


def _sums_of_rows(matrix: Array) -> Array:
    sums, run = np.empty(len(matrix), matrix.dtype), _row_sums[matrix.dtype.char]
    threads.in_pieces(lambda part: run(matrix[part], sums[part]), len(matrix), matrix.size)
    return sums


def _sums_of_columns(matrices: Array) -> Array:
    sums, run = np.empty(matrices.shape[::2], matrices.dtype), _column_sums[matrices.dtype.char]
    threads.in_pieces(lambda part: run(matrices[part], sums[part]), len(matrices), matrices.size)
    return sums


@helper(reassociate=True)
def _sum(numbers: Read1) -> Any:
    total = real(0.0)
    for k in range(numbers.size):
        total += numbers[k]
    return total


@kernel
def _row_sums(matrix: Read2, sums: Write1) -> None:
    count, numbers = matrix.shape[1], flat(matrix)
    for row in range(sums.size):
        total = np.float64(0.0)
        for begin in range(0, count, _BLOCK):
            block = numbers[row * count + begin :][: min(_BLOCK, count - begin)]
            total += np.float64(_sum(block))
        sums[row] = real(total)


@kernel
def _column_sums(matrices: Read3, sums: Write2) -> None:
    for n in range(sums.shape[0]):
        for column in range(sums.shape[1]):
            sums[n, column] = real(0.0)
        for row in range(matrices.shape[1]):
            for column in range(sums.shape[1]):
                sums[n, column] += matrices[n, row, column]
