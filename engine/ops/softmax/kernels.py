"""Softmax and log-softmax along the rows of a matrix, forward and backward.

Arrays are (rows, columns), C-contiguous, float32 or float64. NaN and infinities give what PyTorch gives: a row with NaN
or +inf, or of -inf only, becomes NaN. A row's result depends on that row alone (not on alignment or its neighbours).
"""

from typing import Any

import numpy as np

from engine.kernels.elementary import exp
from engine.kernels.jit import kernel
from engine.kernels.language import Read2, Write2, real
from engine.kernels.rows import row_dot, row_exp_sum, row_max, row_sum
from engine.sharing.threads import WORTH, in_pieces

Array = np.ndarray
_PASSES = 4  # over memory take as long: 114 µs for 1024 x 256


def softmax_forward(x: Array, out: Array | None = None) -> Array:
    """``exp(x) / sum(exp(x))`` of every row of x (M, C). ``out`` may be x itself."""
    out = np.empty_like(x) if out is None else out
    _by_rows(_softmax_forward[x.dtype.char], x, out)
    return out


def softmax_backward(gradient: Array, output: Array, out: Array | None = None) -> Array:
    """Gradient of x from the gradient (M, C) of ``output`` (M, C). ``out`` may be ``gradient`` itself."""
    out = np.empty_like(gradient) if out is None else out
    _by_rows(_softmax_backward[gradient.dtype.char], gradient, output, out)
    return out


def log_softmax_forward(x: Array, out: Array | None = None) -> Array:
    """``x - log(sum(exp(x)))`` of every row of x (M, C). ``out`` may be x itself."""
    out = np.empty_like(x) if out is None else out
    _by_rows(_log_softmax_forward[x.dtype.char], x, out)
    return out


def log_softmax_backward(gradient: Array, output: Array, out: Array | None = None) -> Array:
    """Gradient of x from the gradient (M, C) of ``output`` (M, C). ``out`` may be ``gradient`` itself."""
    out = np.empty_like(gradient) if out is None else out
    _by_rows(_log_softmax_backward[gradient.dtype.char], gradient, output, out)
    return out


def _by_rows(run: Any, *arrays: Array) -> None:
    """Runs a kernel on all rows, or on some of them on each of several threads."""
    size = arrays[0].size
    if not _is_shared(size):
        run(*arrays)
    else:
        in_pieces(lambda part: run(*(array[part] for array in arrays)), len(arrays[0]), size * _PASSES)


def _is_shared(size: int) -> bool:
    """Whether so many elements are shared among threads."""
    return size * _PASSES >= WORTH


@kernel
def _softmax_forward(x: Read2, out: Write2) -> None:
    rows, columns = x.shape
    if columns == 0:
        return
    for row in range(rows):
        largest = row_max(x, row)
        for j in range(columns):
            out[row, j] = exp(x[row, j] - largest)
        factor = real(1.0) / row_sum(out, row)
        for j in range(columns):
            out[row, j] *= factor


@kernel
def _softmax_backward(gradient: Read2, output: Read2, out: Write2) -> None:
    rows, columns = output.shape
    for row in range(rows):
        mean = row_dot(gradient, output, row)
        for j in range(columns):
            out[row, j] = output[row, j] * (gradient[row, j] - mean)


@kernel
def _log_softmax_forward(x: Read2, out: Write2) -> None:
    rows, columns = x.shape
    if columns == 0:
        return
    for row in range(rows):
        largest = row_max(x, row)
        log_sum = np.log(row_exp_sum(x, row, largest))
        for j in range(columns):
            out[row, j] = (x[row, j] - largest) - log_sum


@kernel
def _log_softmax_backward(gradient: Read2, output: Read2, out: Write2) -> None:
    rows, columns = output.shape
    for row in range(rows):
        total = row_sum(gradient, row)
        for j in range(columns):
            out[row, j] = gradient[row, j] - exp(output[row, j]) * total
