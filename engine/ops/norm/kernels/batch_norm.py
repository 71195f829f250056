"""Batch normalisation in steps between which ranks can average: moments, normalise, gradient sums, input gradient.

x is (M, C) for channels-last images (M = N * H * W) or (N, C, L) for contiguous ones (L = H * W); C-contiguous, float32
or float64. Vectors are (C,) of the same dtype. Moments and gradient sums are taken over blocks and joined in float64,
so their error does not grow with the batch; M and L of 1, and 0 elements, are allowed. Source:
torch.nn.functional.batch_norm (aten native_batch_norm, native_batch_norm_backward), Chan et al. 1979 for joining
moments.
"""

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read1, Read2, Read3, Write1, Write2, Write3, fma, lines, real
from engine.kernels.rows import row_centred_dot, row_squared_distance, row_sum
from engine.sharing import threads

Array = np.ndarray


def moments(x: Array) -> tuple[Array, Array]:
    """Mean (C,) and biased variance (C,) of every channel, in one pass over memory; NaN where there is no element."""
    channels = x.shape[1]
    mean, variance = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    if x.ndim == 3:
        run = _moments_planes[x.dtype.char]
        threads.in_pieces(lambda part: run(x, part.start, mean[part], variance[part]), x.shape[1], x.size)
        return mean, variance
    step = _rows_at_once(channels)
    centres, spreads = _scratch(len(x), channels, x.dtype)
    blocks = len(centres)
    run = _moments_rows[x.dtype.char]
    threads.in_pieces(
        lambda part: run(x[part.start * step : part.stop * step], step, centres[part], spreads[part]), blocks, x.size
    )
    _join_moments[x.dtype.char](len(x), step, centres, spreads, mean, variance)
    return mean, variance


def normalise(
    x: Array, mean: Array, rstd: Array, weight: Array | None, bias: Array | None, out: Array | None = None
) -> Array:
    """``(x - mean) * rstd * weight + bias``; also the whole of evaluation mode. ``out`` may be x itself."""
    out = np.empty_like(x) if out is None else out
    scale = rstd if weight is None else rstd * weight
    shift = np.zeros_like(mean) if bias is None else bias
    run = (_normalise_rows if x.ndim == 2 else _normalise_planes)[x.dtype.char]
    threads.in_pieces(lambda part: run(x[part], mean, scale, shift, out[part]), len(x), x.size)
    return out


def gradient_sums(gradient: Array, x: Array, mean: Array) -> tuple[Array, Array]:
    """Sums (C,) of ``gradient``, the bias's gradient, and of ``gradient * (x - mean)``: times rstd the weight's."""
    total, projected = np.empty_like(mean), np.empty_like(mean)
    if x.ndim == 3:
        run = _gradient_sums_planes[x.dtype.char]
        threads.in_pieces(
            lambda part: run(gradient, x, part.start, mean[part], total[part], projected[part]), x.shape[1], x.size
        )
        return total, projected
    step = _rows_at_once(x.shape[1])
    sums, products = _scratch(len(x), x.shape[1], x.dtype)
    run = _gradient_sums_rows[x.dtype.char]

    def compute(part: slice) -> None:
        some = slice(part.start * step, part.stop * step)
        run(gradient[some], x[some], step, mean, sums[part], products[part])

    threads.in_pieces(compute, len(sums), x.size)
    _join_sums[x.dtype.char](sums, products, total, projected)
    return total, projected


def input_gradient(
    gradient: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    total: Array,
    projected: Array,
    count: float,
    out: Array | None = None,
) -> Array:
    """Gradient of x in training mode from the sums over all ``count`` elements of a channel.

    In evaluation mode it is ``gradient * rstd * weight``: pass zeros for both sums. ``out`` may be ``gradient``.
    """
    out = np.empty_like(x) if out is None else out
    scale, average, slope = np.empty_like(rstd), np.empty_like(rstd), np.empty_like(rstd)
    weight = _absent(x.dtype) if weight is None else weight
    _coefficients[x.dtype.char](rstd, weight, total, projected, count, scale, average, slope)
    chosen = _input_gradient_rows if x.ndim == 2 else _input_gradient_planes
    run = chosen[x.dtype.char]
    threads.in_pieces(lambda part: run(gradient[part], x[part], mean, scale, average, slope, out[part]), len(x), x.size)
    return out


def settle(
    mean: Array,
    variance: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: float,
    count: int,
    eps: float,
) -> Array:
    """Reciprocal standard deviations (C,) of the `count` elements of a channel; the running statistics move by
    `momentum` towards the batch's, in place.
    """
    rstd, none = np.empty_like(mean), _absent(mean.dtype)
    moving = none if running_mean is None else running_mean, none if running_var is None else running_var
    _settle[mean.dtype.char](mean, variance, *moving, *shares(momentum, count), eps, rstd)
    return rstd


def shares(momentum: float, count: int) -> tuple[float, float, float]:
    """What running statistics keep, and what they take of the batch's mean and variance, which becomes unbiased."""
    return 1 - momentum, momentum, momentum * count / max(count - 1, 1)


def _absent(kind: np.dtype) -> Array:
    """What the kernels take for a vector that is not there."""
    return np.empty(0, kind)


def _scratch(rows: int, channels: int, kind: np.dtype) -> tuple[Array, Array]:
    """Where the kernels on rows put two sums a channel of each block."""
    shape = (-(-rows // _rows_at_once(channels)), channels)
    return np.empty(shape, kind), np.empty(shape, kind)


def _rows_at_once(channels: int) -> int:
    """Rows of a block that stays in the level-1 cache between its two visits."""
    return min(max(4096 // max(channels, 1), 8), 256)


@kernel
def _settle(
    mean: Read1,
    variance: Read1,
    running_mean: Write1,
    running_var: Write1,
    kept: float,
    of_mean: float,
    of_variance: float,
    eps: float,
    rstd: Write1,
) -> None:
    kept, of_mean, of_variance, eps = real(kept), real(of_mean), real(of_variance), real(eps)
    for c in range(running_mean.size):
        running_mean[c] = running_mean[c] * kept + mean[c] * of_mean
    for c in range(running_var.size):
        running_var[c] = running_var[c] * kept + variance[c] * of_variance
    for c in range(mean.size):
        rstd[c] = real(1.0) / np.sqrt(variance[c] + eps)


@kernel
def _coefficients(
    rstd: Read1,
    weight: Read1,
    total: Read1,
    projected: Read1,
    count: float,
    scale: Write1,
    average: Write1,
    slope: Write1,
) -> None:
    count = real(count)
    for c in range(rstd.size):
        scale[c] = rstd[c] * weight[c] if weight.size > 0 else rstd[c]
        average[c] = total[c] / count
        slope[c] = projected[c] * rstd[c] * rstd[c] / count


# The sums of a block are its own, in the dtype of x; blocks are joined in their order, in float64.
@kernel
def _moments_rows(x: Read2, step: int, centres: Write2, spreads: Write2) -> None:
    rows, channels = x.shape
    for block in range(centres.shape[0]):
        start = block * step
        size = min(step, rows - start)
        centre, spread = centres[block], spreads[block]
        for c in range(channels):
            centre[c] = real(0.0)
            spread[c] = real(0.0)
        for r in range(start, start + size):
            for c in range(channels):
                centre[c] += x[r, c]
        for c in range(channels):
            centre[c] /= real(size)
        for r in range(start, start + size):
            for c in range(channels):
                distance = x[r, c] - centre[c]
                spread[c] += distance * distance


@kernel
def _join_moments(rows: int, step: int, centres: Read2, spreads: Read2, mean: Write1, variance: Write1) -> None:
    blocks, channels = centres.shape
    means, squares = np.zeros(channels), np.zeros(channels)
    for block in range(blocks):
        start = block * step
        size = min(step, rows - start)
        share = size / (start + size)
        for c in range(channels):
            distance64 = np.float64(centres[block, c]) - means[c]
            means[c] += distance64 * share
            squares[c] += np.float64(spreads[block, c]) + distance64 * distance64 * share * start
    for c in range(channels):
        mean[c] = real(means[c] if rows > 0 else np.nan)
        variance[c] = real(squares[c] / rows)


@kernel
def _moments_planes(x: Read3, first: int, mean: Write1, variance: Write1) -> None:
    batch, channels, length = x.shape
    planes = lines(x)
    for c in range(mean.size):
        mean64, squares, seen = 0.0, 0.0, 0
        for n in range(batch):
            if length == 0:
                continue
            centre = row_sum(planes, n * channels + first + c) / real(length)
            spread = row_squared_distance(planes, n * channels + first + c, centre)
            distance64 = np.float64(centre) - mean64
            share = length / (seen + length)
            mean64 += distance64 * share
            squares += np.float64(spread) + distance64 * distance64 * share * seen
            seen += length
        mean[c] = real(mean64 if seen > 0 else np.nan)
        variance[c] = real(squares / seen)


@kernel
def _normalise_rows(x: Read2, mean: Read1, scale: Read1, shift: Read1, out: Write2) -> None:
    for r in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[r, c] = fma(x[r, c] - mean[c], scale[c], shift[c])


@kernel
def _normalise_planes(x: Read3, mean: Read1, scale: Read1, shift: Read1, out: Write3) -> None:
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            m, s, b = mean[c], scale[c], shift[c]
            for i in range(x.shape[2]):
                out[n, c, i] = fma(x[n, c, i] - m, s, b)


@kernel
def _gradient_sums_rows(
    gradient: Read2, x: Read2, step: int, mean: Read1, block_sums: Write2, block_products: Write2
) -> None:
    rows, channels = x.shape
    for block in range(block_sums.shape[0]):
        sums, products = block_sums[block], block_products[block]
        for c in range(channels):
            sums[c] = real(0.0)
            products[c] = real(0.0)
        for r in range(block * step, min((block + 1) * step, rows)):
            for c in range(channels):
                g = gradient[r, c]
                sums[c] += g
                products[c] = fma(g, x[r, c] - mean[c], products[c])


@kernel
def _join_sums(sums: Read2, products: Read2, total: Write1, projected: Write1) -> None:
    blocks, channels = sums.shape
    totals, projections = np.zeros(channels), np.zeros(channels)
    for block in range(blocks):
        for c in range(channels):
            totals[c] += np.float64(sums[block, c])
            projections[c] += np.float64(products[block, c])
    for c in range(channels):
        total[c] = real(totals[c])
        projected[c] = real(projections[c])


@kernel
def _gradient_sums_planes(gradient: Read3, x: Read3, first: int, mean: Read1, total: Write1, projected: Write1) -> None:
    batch, channels, _ = x.shape
    gradient_planes = lines(gradient)
    planes = lines(x)
    for c in range(total.size):
        total64, projected64 = 0.0, 0.0
        for n in range(batch):
            plane = n * channels + first + c
            total64 += np.float64(row_sum(gradient_planes, plane))
            projected64 += np.float64(row_centred_dot(gradient_planes, planes, plane, mean[c]))
        total[c] = real(total64)
        projected[c] = real(projected64)


@kernel
def _input_gradient_rows(
    gradient: Read2, x: Read2, mean: Read1, scale: Read1, average: Read1, slope: Read1, out: Write2
) -> None:
    for r in range(x.shape[0]):
        for c in range(x.shape[1]):
            out[r, c] = (gradient[r, c] - average[c] - (x[r, c] - mean[c]) * slope[c]) * scale[c]


@kernel
def _input_gradient_planes(
    gradient: Read3, x: Read3, mean: Read1, scale: Read1, average: Read1, slope: Read1, out: Write3
) -> None:
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            m, s, a, k = mean[c], scale[c], average[c], slope[c]
            for i in range(x.shape[2]):
                out[n, c, i] = (gradient[n, c, i] - a - (x[n, c, i] - m) * k) * s
