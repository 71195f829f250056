"""Batch normalisation in steps between which ranks can average: moments, normalise, gradient sums, input gradient.

x is (M, C) for channels-last images (M = N * H * W) or (N, C, L) for contiguous ones (L = H * W); C-contiguous, float32
or float64. Vectors are (C,) of the same dtype. Moments and gradient sums are taken over blocks and joined in float64,
so their error does not grow with the batch; M and L of 1, and 0 elements, are allowed. Source:
torch.nn.functional.batch_norm (aten native_batch_norm, native_batch_norm_backward), Chan et al. 1979 for joining
moments.
"""

from typing import Any

import numpy as np

from engine.kernels.jit import Read1, Read2, Read3, Write1, Write2, Write3, fma, helper, kernel, real
from engine.kernels.rows import row_centred_dot, row_squared_distance, row_sum

Array = np.ndarray


def moments(x: Array) -> tuple[Array, Array]:
    """Mean (C,) and biased variance (C,) of every channel, in one pass over memory; NaN where there is no element."""
    channels = x.shape[1]
    mean, variance = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    (_moments_rows if x.ndim == 2 else _moments_planes)[x.dtype.char](x, mean, variance)
    return mean, variance


def normalise(
    x: Array, mean: Array, rstd: Array, weight: Array | None, bias: Array | None, out: Array | None = None
) -> Array:
    """``(x - mean) * rstd * weight + bias``; also the whole of evaluation mode. ``out`` may be x itself."""
    out = np.empty_like(x) if out is None else out
    scale = rstd if weight is None else rstd * weight
    shift = np.zeros_like(mean) if bias is None else bias
    (_normalise_rows if x.ndim == 2 else _normalise_planes)[x.dtype.char](x, mean, scale, shift, out)
    return out


def gradient_sums(gradient: Array, x: Array, mean: Array) -> tuple[Array, Array]:
    """Sums (C,) of ``gradient``, the bias's gradient, and of ``gradient * (x - mean)``: times rstd the weight's."""
    total, projected = np.empty_like(mean), np.empty_like(mean)
    (_gradient_sums_rows if x.ndim == 2 else _gradient_sums_planes)[x.dtype.char](gradient, x, mean, total, projected)
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
    scale = rstd if weight is None else rstd * weight
    average = total / x.dtype.type(count)
    slope = projected * rstd * rstd / x.dtype.type(count)
    chosen = _input_gradient_rows if x.ndim == 2 else _input_gradient_planes
    chosen[x.dtype.char](gradient, x, mean, scale, average, slope, out)
    return out


@helper
def _rows_at_once(channels: int) -> Any:
    """Rows of a block that stays in the level-1 cache between its two visits."""
    return min(max(4096 // max(channels, 1), 8), 256)


@kernel
def _moments_rows(x: Read2, mean: Write1, variance: Write1) -> None:
    rows, channels = x.shape
    step = _rows_at_once(channels)
    means, squares = np.zeros(channels), np.zeros(channels)
    centre, spread = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    for start in range(0, rows, step):
        size = min(step, rows - start)
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
        share = size / (start + size)
        for c in range(channels):
            distance64 = np.float64(centre[c]) - means[c]
            means[c] += distance64 * share
            squares[c] += np.float64(spread[c]) + distance64 * distance64 * share * start
    for c in range(channels):
        mean[c] = real(means[c] if rows > 0 else np.nan)
        variance[c] = real(squares[c] / rows)


@kernel
def _moments_planes(x: Read3, mean: Write1, variance: Write1) -> None:
    batch, channels, length = x.shape
    planes = x.reshape((batch * channels, length))
    for c in range(channels):
        mean64, squares, seen = 0.0, 0.0, 0
        for n in range(batch):
            if length == 0:
                continue
            centre = row_sum(planes, n * channels + c) / real(length)
            spread = row_squared_distance(planes, n * channels + c, centre)
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
def _gradient_sums_rows(gradient: Read2, x: Read2, mean: Read1, total: Write1, projected: Write1) -> None:
    rows, channels = x.shape
    step = _rows_at_once(channels)
    totals, projections = np.zeros(channels), np.zeros(channels)
    sums, products = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    for start in range(0, rows, step):
        for c in range(channels):
            sums[c] = real(0.0)
            products[c] = real(0.0)
        for r in range(start, min(start + step, rows)):
            for c in range(channels):
                g = gradient[r, c]
                sums[c] += g
                products[c] = fma(g, x[r, c] - mean[c], products[c])
        for c in range(channels):
            totals[c] += np.float64(sums[c])
            projections[c] += np.float64(products[c])
    for c in range(channels):
        total[c] = real(totals[c])
        projected[c] = real(projections[c])


@kernel
def _gradient_sums_planes(gradient: Read3, x: Read3, mean: Read1, total: Write1, projected: Write1) -> None:
    batch, channels, length = x.shape
    gradient_planes = gradient.reshape((batch * channels, length))
    planes = x.reshape((batch * channels, length))
    for c in range(channels):
        total64, projected64 = 0.0, 0.0
        for n in range(batch):
            total64 += np.float64(row_sum(gradient_planes, n * channels + c))
            projected64 += np.float64(row_centred_dot(gradient_planes, planes, n * channels + c, mean[c]))
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
