"""Adding a bias to the rows of a matrix, and its gradient: the sums of a matrix's columns.

Matrices are C-contiguous, float32 or float64. Each element takes one rounding a row, in row order: the bits of NumPy's
own loops. 8x16 float32: 0.20 µs where `out += bias` takes 0.78, column sums 0.22 (`add.reduce` 0.89); 512x1024: 31 µs
(86), column sums 31 (51).
"""

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read1, Read2, Write1, Write2
from engine.sharing.threads import WORTH, in_pieces

_LINE = 32  # columns


def add_bias(matrix: np.ndarray, bias: np.ndarray) -> None:
    """Adds ``bias``, one value a column, to every row in place."""
    if matrix.size < WORTH:
        _add_bias[matrix.dtype.char](matrix, bias)
    else:
        _share_add_bias(matrix, bias)


def column_sums(matrix: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
    """The sum over the rows, one value a column, in `into` where that is given; zeros where there is no row."""
    sums = np.empty(matrix.shape[1], matrix.dtype) if into is None else into
    if matrix.size < WORTH:
        _column_sums[matrix.dtype.char](matrix, sums)
    else:
        _share_column_sums(matrix, sums)
    return sums


# Functions of their own: a function that another one inside it looks into takes longer, shared or not.


def _share_add_bias(matrix: np.ndarray, bias: np.ndarray) -> None:
    run = _add_bias[matrix.dtype.char]
    in_pieces(lambda part: run(matrix[part], bias), len(matrix), matrix.size)


def _share_column_sums(matrix: np.ndarray, sums: np.ndarray) -> None:
    """Every thread has columns of its own: whole lines of the cache, so that no two write to one."""
    columns = sums.size
    whole, run = columns // _LINE, _some_column_sums[matrix.dtype.char]

    def compute(part: slice) -> None:
        end = columns if part.stop == whole else part.stop * _LINE
        run(matrix, sums[part.start * _LINE : end], part.start * _LINE)

    in_pieces(compute, max(whole, 1), matrix.size)


@kernel
def _add_bias(matrix: Write2, bias: Read1) -> None:
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            matrix[row, column] += bias[column]


@kernel
def _column_sums(matrix: Read2, sums: Write1) -> None:
    for column in range(sums.size):
        sums[column] = 0
    for row in range(matrix.shape[0]):
        for column in range(sums.size):
            sums[column] += matrix[row, column]


@kernel
def _some_column_sums(matrix: Read2, sums: Write1, first: int) -> None:
    for column in range(sums.size):
        sums[column] = 0
    for row in range(matrix.shape[0]):
        line = matrix[row, first:]
        for column in range(sums.size):
            sums[column] += line[column]
