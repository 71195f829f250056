"""The row-wise middle of attention, in place on a block of scores: masked softmax, and its backward.

scores (M, S) C-contiguous, M = slices x length: row r belongs to query ``first + r % length``. With ``causal`` it
attends keys 0 ... query only, and nothing right of that is computed. 32 heads of 128 x 128 floats, causal: 0.25 ms,
four NumPy passes 1.9 ms.
"""

from typing import Any

import numpy as np

from engine.kernels.elementary import exp
from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read2, Write1, Write2, bits, from_bits, real

Array = np.ndarray


def softmax_rows(scores: Array, log_sums: Array, *, length: int, scale: float, causal: bool, first: int = 0) -> None:
    """``scores`` becomes softmax(scores * scale) row by row; log_sums (M,) receives the logarithms of the sums.

    A row without a key, or with scores of -infinity only, becomes 0 (log-sum -infinity).
    """
    _softmax_rows[scores.dtype.char](scores, log_sums, length, scale, causal, first)


def softmax_rows_again(
    scores: Array, log_sums: Array, *, length: int, scale: float, causal: bool, first: int = 0
) -> None:
    """``scores`` becomes the probabilities that :func:`softmax_rows` gave, from the logarithms it kept."""
    _softmax_rows_again[scores.dtype.char](scores, log_sums, length, scale, causal, first)


def softmax_rows_backward(
    gradient: Array, probabilities: Array, *, length: int, scale: float, causal: bool, first: int = 0
) -> None:
    """``gradient`` (of the probabilities) becomes that of the scores before scaling, in place."""
    _softmax_rows_backward[gradient.dtype.char](gradient, probabilities, length, scale, causal, first)


@helper
def _width(row: int, columns: int, length: int, causal: bool, first: int) -> int:
    """How many keys the query of this row attends."""
    return min(columns, first + row % length + 1) if causal else columns


@helper
def _padded(width: int, columns: int) -> int:
    """`width` rounded up. Trip counts that change from row to row are mispredicted: 128 keys take 0.41 ms in steps of
    32, 0.27 in one.
    """
    return min(columns, (width + 127) // 128 * 128)


def _largest64(x: Write2, row: int, width: int) -> Any:
    largest = np.int64(-0x7FF0000000000001)
    for j in range(width):
        pattern = bits(np.float64(x[row, j]))
        largest = max(largest, np.int64(pattern ^ ((pattern >> 63) & 0x7FFFFFFFFFFFFFFF)))
    return from_bits(np.int64(largest ^ ((largest >> 63) & 0x7FFFFFFFFFFFFFFF)))


@helper(float64=_largest64)
def _largest(x: Write2, row: int, width: int) -> Any:
    """Largest of the first elements of a row, by integer comparisons as `engine.kernels.rows.row_max`."""
    largest = np.int32(-0x7F800001)
    for j in range(width):
        pattern = bits(np.float32(x[row, j]))
        largest = max(largest, np.int32(pattern ^ ((pattern >> 31) & 0x7FFFFFFF)))
    return from_bits(np.int32(largest ^ ((largest >> 31) & 0x7FFFFFFF)))


@helper(reassociate=True)
def _dot(a: Write2, b: Write2, row: int, width: int) -> Any:
    total = real(0.0)
    for j in range(width):
        total += a[row, j] * b[row, j]
    return total


@helper(reassociate=True)
def _sum(a: Write2, row: int, width: int) -> Any:
    total = real(0.0)
    for j in range(width):
        total += a[row, j]
    return total


@helper
def softmax_lines(scores: Write2, log_sums: Write1, length: int, scale: float, causal: bool, first: int) -> None:
    """:func:`softmax_rows` inside of kernels."""
    rows, columns = scores.shape
    factor = real(scale)
    for row in range(rows):
        width = _width(row, columns, length, causal, first)
        padded = _padded(width, columns)
        for j in range(padded):
            scores[row, j] = scores[row, j] * factor if j < width else real(-np.inf)
        for j in range(padded, columns):
            scores[row, j] = real(0.0)
        largest = _largest(scores, row, padded)
        if largest == real(-np.inf):
            for j in range(padded):
                scores[row, j] = real(0.0)
            log_sums[row] = largest
            continue
        for j in range(padded):
            scores[row, j] = exp(scores[row, j] - largest)
        total = _sum(scores, row, padded)
        log_sums[row] = largest + np.log(total)
        inverse = real(1.0) / total
        for j in range(padded):
            scores[row, j] *= inverse


@kernel
def _softmax_rows(scores: Write2, log_sums: Write1, length: int, scale: float, causal: bool, first: int) -> None:
    softmax_lines(scores, log_sums, length, scale, causal, first)


@helper
def softmax_lines_again(scores: Write2, log_sums: Write1, length: int, scale: float, causal: bool, first: int) -> None:
    """:func:`softmax_rows_again` inside of kernels."""
    rows, columns = scores.shape
    factor = real(scale)
    for row in range(rows):
        log_sum = log_sums[row]
        width = 0 if log_sum == real(-np.inf) else _width(row, columns, length, causal, first)
        padded = _padded(width, columns)
        for j in range(padded):
            scores[row, j] = exp(scores[row, j] * factor - log_sum) if j < width else real(0.0)
        for j in range(padded, columns):
            scores[row, j] = real(0.0)


@kernel
def _softmax_rows_again(scores: Write2, log_sums: Write1, length: int, scale: float, causal: bool, first: int) -> None:
    softmax_lines_again(scores, log_sums, length, scale, causal, first)


@helper
def softmax_lines_backward(
    gradient: Write2, probabilities: Read2, length: int, scale: float, causal: bool, first: int
) -> None:
    """:func:`softmax_rows_backward` inside of kernels."""
    rows, columns = gradient.shape
    factor = real(scale)
    for row in range(rows):
        # Probabilities are 0 right of the width, so whole vectors give zeros there.
        padded = _padded(_width(row, columns, length, causal, first), columns)
        mean = _dot(gradient, probabilities, row, padded)
        for j in range(padded):
            gradient[row, j] = probabilities[row, j] * (gradient[row, j] - mean) * factor
        for j in range(padded, columns):
            gradient[row, j] = real(0.0)


@kernel
def _softmax_rows_backward(
    gradient: Write2, probabilities: Read2, length: int, scale: float, causal: bool, first: int
) -> None:
    softmax_lines_backward(gradient, probabilities, length, scale, causal, first)
