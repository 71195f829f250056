"""Convolution of row-major images in small groups, depthwise ones before all, of few channels, or to few outputs, by
`engine.ops.conv.kernels.planes`.

The channels-last kernels of `engine.ops.conv.direct` change such an image's layout on the way in and on the way out,
and compute whole vectors of a group's outputs. Here pixels fill the vectors, and images stay as they are.
"""

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from engine.kernels.filling import Filling, Taps, filled, lay_out
from engine.ops.conv.direct import input_phases
from engine.ops.conv.images import dense, three
from engine.ops.conv.kernels import planes as kernels
from engine.ops.conv.kernels.packing import lanes
from engine.ops.shared.windows import Axes, ConvWindow
from engine.rules.layout import MemoryFormat

Array = Any

# Of a plane from which this is faster: with fewer, what surrounds a plane's few runs costs more than the layout.
_MANY_PIXELS = 256
# Up to so many channels and outputs of a group, and products of an element of the result, this is faster.
_NARROW, _FEW_PRODUCTS = 8, 75


def serves(window: ConvWindow, weight: Axes, out: Axes, dtype: Any, row_major: bool) -> bool:
    """Whether these are better than the channels-last ones, for a weight of this shape and a plane of ``out`` pixels.

    One thread of Zen 4, AVX-512, and with AVX2: forward and gradient of the weight, there, or by columns, and here,
    ms: 3x3, 28x28, depthwise, 8 images of 96 channels, 0.88, 1.16 and 0.43, 0.63; 8 groups of 8, 8 images, 1.30, 1.45
    and 0.67, 1.08, AVX2 1.30, 1.57 and 0.86, 1.18; 32x32, 16 images, 64 channels to 3, 3.5, 4.1 and 1.8, 1.2, AVX2 2.5,
    2.9 and 1.6, 1.5; 64 images, 3 channels to 64, 6.5, 5.5 and 3.7, 3.9, AVX2 5.0, 5.5 and 3.8, 4.8; 5x5, 11.4, 10.5
    and 7.8, 8.0, AVX2 10.8, 12.0 and 8.1, 10.1; 28x28, 1 channel to 32, 0.97, 0.87 and 0.64, 0.67, AVX2 1.05, 1.27 and
    0.70, 0.70. With more products, 10 channels to 16, no longer: 0.82, 0.90 and 0.77, 0.97.
    """
    if not row_major or prod(out) < _MANY_PIXELS:
        return False
    if window.groups > 1:
        return _in_narrow_groups(window, weight)
    if prod(weight[2:]) == 1 or len(out) == 1:
        return False
    # fewer outputs than half a vector leave the vectors of the others empty
    return prod(weight[1:]) <= _FEW_PRODUCTS or 2 * weight[0] <= lanes(dtype)


def serves_input_gradient(window: ConvWindow, weight: Axes, out: Axes, row_major: bool) -> bool:
    """The same for the gradient of the input. The first two of those: 0.66 there, 0.44 here; 1.24 and 0.65; 16 images
    of 32x32, 3 outputs to 64 channels, 1.4 and 0.84.
    """
    if not row_major or prod(out) < _MANY_PIXELS:
        return False
    if window.groups > 1:
        return _in_narrow_groups(window, weight)
    few = weight[0] * prod(weight[2:]) <= _FEW_PRODUCTS
    return few and len(out) > 1 and max(window.stride) == 1 < prod(weight[2:])


def _in_narrow_groups(window: ConvWindow, weight: Axes) -> bool:
    return max(weight[0] // window.groups, weight[1]) <= _NARROW


def _planes(image: Array) -> Array:
    """(N, C, d...) as (N, C, D, H, W), C-contiguous."""
    return np.ascontiguousarray(image).reshape(*image.shape[:2], *three(image.shape[2:], 1))


@lru_cache(4096)
def _filled(window: ConvWindow, size: Any, kernel: Any, out: Any) -> tuple[Filling, Taps]:
    """How the input of a convolution is laid out for its windows, and their elements."""
    return filled(size, out, kernel, three(window.stride, 1), three(window.padding, 0), three(window.dilation, 1))


def _filters(weight: Array, groups: int) -> Array:
    """(groups, outputs of a group, window * channels of a group) of (outputs, channels of a group, kd, kh, kw)."""
    rows = np.ascontiguousarray(weight.transpose(0, 2, 3, 4, 1))
    return rows.reshape(groups, weight.shape[0] // groups, prod(weight.shape[1:]))


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`; row-major."""
    image = _planes(input)
    shape = window.positions(input.shape[2:], weight.shape[2:])
    out, kernel = three(shape, 1), three(weight.shape[2:], 1)
    filling, taps = _filled(window, image.shape[2:], kernel, out)
    filters = _filters(weight.reshape(*weight.shape[:2], *kernel), window.groups)
    result = np.empty((len(input), len(weight), *out), input.dtype)
    job = kernels.Job(out, 0, (out[1] * out[2], out[2], 1), taps)
    kernels.correlate(image, filling, (job,), [filters], bias, result)
    return result.reshape(*result.shape[:2], *shape)


def weight_gradient(gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; in the strides asked for."""
    image, slopes, kernel = _planes(input), _planes(gradient), three(size[2:], 1)
    filling, taps = _filled(window, image.shape[2:], kernel, slopes.shape[2:])
    sums = kernels.weight_sums(image, filling, taps, slopes, window.groups)
    result = dense(size, weight_stride, input.dtype)
    result.reshape(*size[:2], *kernel)[...] = sums.reshape(size[0], *kernel, size[1]).transpose(0, 4, 1, 2, 3)
    return result


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; row-major, without the bias, by the phases of `direct`."""
    groups, kernel, extent = window.groups, three(weight.shape[2:], 1), three(size, 1)
    outputs, channels = weight.shape[0] // groups, weight.shape[1]
    slopes = _planes(gradient)
    filling, jobs, chosen = _turned(window, slopes.shape[2:], kernel, extent)
    turned = weight.reshape(groups, outputs, channels, *kernel).swapaxes(1, 2).reshape(-1, outputs, *kernel)
    filters = [_filters(turned[:, :, *taps][:, :, ::-1, ::-1, ::-1], groups) for taps in chosen]
    result = np.empty((len(gradient), groups * channels, *extent), gradient.dtype)
    kernels.correlate(slopes, filling, jobs, filters, None, result)
    return result.reshape(*result.shape[:2], *size)


@lru_cache(4096)
def _turned(
    window: ConvWindow, size: Any, kernel: Any, extent: Any
) -> tuple[Filling, tuple[kernels.Job, ...], list[tuple[slice, ...]]]:
    """How a gradient of this size is laid out for that of an input of such an extent, what is computed of it, and of
    which elements of the window.
    """
    stride, dilation = three(window.stride, 1), three(window.dilation, 1)
    axes, before, whole = input_phases(extent, kernel, window)
    widest = max(phase[1] for phase in axes[2])
    filling = lay_out(size, (1, 1, 1), before, (1, 1, 1), whole, widest)
    rows = extent[1] * extent[2], extent[2], 1
    steps: Any = tuple(step * by for step, by in zip(rows, stride, strict=True))
    jobs, chosen = [], []
    for phases in product(*axes):
        remainders, count, starts, taps, firsts = zip(*phases, strict=True)
        start: Any = tuple(pad + at for pad, at in zip(before, starts, strict=True))
        first = sum(step * at for step, at in zip(rows, remainders, strict=True))
        jobs.append(kernels.Job(count, first, steps, Taps(taps, dilation, start)))
        chosen.append(tuple(slice(at, None, step) for at, step in zip(firsts, stride, strict=True)))
    return filling, tuple(jobs), chosen
