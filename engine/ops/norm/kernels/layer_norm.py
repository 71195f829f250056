"""Layer norm over rows: statistics, normalisation and affine map in one visit of each row, the backward in another.

x (M, N) C-contiguous float32 or float64; weight and bias (N,) or None. Every row's result depends on that row alone.
Source: torch.nn.functional.layer_norm (aten native_layer_norm, native_layer_norm_backward).
"""

from typing import Any

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, Read2, Write1, Write2, real
from engine.kernels.rows import row_squared_distance, row_sum
from engine.sharing import threads

Array = np.ndarray
_PASSES = 2  # over memory: every row is visited three times, but is in cache
_BLOCK = 64  # rows


def layer_norm_forward(
    x: Array, weight: Array | None, bias: Array | None, eps: float, out: Array | None = None
) -> tuple[Array, Array, Array]:
    """Output (M, N), mean (M,) and reciprocal standard deviation (M,) of every row. ``out`` may be x itself."""
    out = np.empty_like(x) if out is None else out
    mean, rstd = np.empty(x.shape[0], x.dtype), np.empty(x.shape[0], x.dtype)
    weight = _absent(x.dtype) if weight is None else weight
    bias = _absent(x.dtype) if bias is None else bias
    run = _layer_norm_forward[x.dtype.char]
    if not _is_shared(x.size):
        run(x, weight, bias, eps, out, mean, rstd)
    else:
        threads.in_pieces(
            lambda part: run(x[part], weight, bias, eps, out[part], mean[part], rstd[part]),
            len(x),
            _PASSES * x.size,
        )
    return out, mean, rstd


def layer_norm_backward(
    gradient: Array, x: Array, mean: Array, rstd: Array, weight: Array | None, out: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients of x (M, N), weight (N,) and bias (N,). ``out`` receives the first and may be ``gradient`` itself."""
    out = np.empty_like(x) if out is None else out
    rows, columns = x.shape
    weight = _absent(x.dtype) if weight is None else weight
    weight_sums, bias_sums = _scratch(rows, columns, x.dtype)
    run = _layer_norm_backward[x.dtype.char]
    if not _is_shared(x.size):
        run(gradient, x, mean, rstd, weight, out, weight_sums, bias_sums)
    else:

        def compute(part: slice) -> None:
            some = slice(part.start * _BLOCK, part.stop * _BLOCK)
            arrays = gradient[some], x[some], mean[some], rstd[some], weight, out[some]
            run(*arrays, weight_sums[part], bias_sums[part])

        threads.in_pieces(compute, len(weight_sums), _PASSES * x.size)
    weight_gradient, bias_gradient = np.empty(columns, x.dtype), np.empty(columns, x.dtype)
    _join[x.dtype.char](weight_sums, bias_sums, weight_gradient, bias_gradient)
    return out, weight_gradient, bias_gradient


def _absent(kind: np.dtype) -> Array:
    """What the kernels take for a weight or bias that is not there."""
    return np.empty(0, kind)


def _scratch(rows: int, columns: int, kind: np.dtype) -> tuple[Array, Array]:
    """Where the backward kernel puts sums of blocks of rows, of the weight's gradient and of the bias's."""
    shape = (-(-rows // _BLOCK), columns)
    return np.empty(shape, kind), np.empty(shape, kind)


def _is_shared(size: int) -> bool:
    """Whether so many elements are shared among threads."""
    return size * _PASSES >= threads.WORTH


@kernel
def _layer_norm_forward(
    x: Read2, weight: Read1, bias: Read1, eps: float, out: Write2, means: Write1, rstds: Write1
) -> None:
    rows, columns = x.shape
    count = real(max(columns, 1))
    for row in range(rows):
        mean = row_sum(x, row) / count
        rstd = real(1.0) / np.sqrt(row_squared_distance(x, row, mean) / count + real(eps))
        means[row] = mean
        rstds[row] = rstd
        if weight.size > 0 and bias.size > 0:
            for j in range(columns):
                out[row, j] = (x[row, j] - mean) * rstd * weight[j] + bias[j]
            continue
        for j in range(columns):
            out[row, j] = (x[row, j] - mean) * rstd
        for j in range(weight.size):
            out[row, j] *= weight[j]
        for j in range(bias.size):
            out[row, j] += bias[j]


@helper(reassociate=True)
def _weighted_dots(gradient: Read2, x: Read2, weight: Read1, row: int, mean: Any, rstd: Any) -> Any:
    """Sums over a row of ``gradient * weight`` and of that times the normalised x."""
    total, projected = real(0.0), real(0.0)
    for j in range(x.shape[1]):
        g = gradient[row, j] * weight[j]
        total += g
        projected += g * ((x[row, j] - mean) * rstd)
    return total, projected


# Weight gradients of a block of rows are summed apart and joined in float64, so that their error does not grow with the
# rows and their bits do not depend on who sums which.
@kernel
def _layer_norm_backward(
    gradient: Read2,
    x: Read2,
    means: Read1,
    rstds: Read1,
    weight: Read1,
    out: Write2,
    weight_sums: Write2,
    bias_sums: Write2,
) -> None:
    rows, columns = x.shape
    count = real(max(columns, 1))
    factors = weight if weight.size > 0 else np.ones(columns, x.dtype)
    for block in range(weight_sums.shape[0]):
        weight_block, bias_block = weight_sums[block], bias_sums[block]
        for j in range(columns):
            weight_block[j] = real(0.0)
            bias_block[j] = real(0.0)
        for row in range(block * _BLOCK, min((block + 1) * _BLOCK, rows)):
            mean, rstd = means[row], rstds[row]
            total, projected = _weighted_dots(gradient, x, factors, row, mean, rstd)
            total /= count
            projected /= count
            for j in range(columns):
                g = gradient[row, j]
                normalised = (x[row, j] - mean) * rstd
                weight_block[j] += g * normalised
                bias_block[j] += g
                out[row, j] = rstd * (g * factors[j] - total - normalised * projected)


@kernel
def _join(weight_sums: Read2, bias_sums: Read2, weight_gradient: Write1, bias_gradient: Write1) -> None:
    columns = weight_gradient.size
    weight_total, bias_total = np.zeros(columns), np.zeros(columns)
    for block in range(weight_sums.shape[0]):
        for j in range(columns):
            weight_total[j] += np.float64(weight_sums[block, j])
            bias_total[j] += np.float64(bias_sums[block, j])
    for j in range(columns):
        weight_gradient[j] = real(weight_total[j])
        bias_gradient[j] = real(bias_total[j])
