"""Convolution on raw arrays, any number of spatial axes: three bilinear maps as matrix products over window columns.

Images are channels-last inside, (N, d..., C), and columns one matrix a group, (G, windows, kernel... * C / G), ordered
as a channels-last weight lies in memory; a channels-last weight is then a matrix operand without a copy. Works for
NumPy and CuPy, any real dtype; `engine.ops.conv.cpu` has the fast paths.
"""

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.ops.matmul.gpu import matmul
from engine.ops.shared.windows import Axes, ConvWindow, channels_first, channels_last, padded, patches
from engine.rules.layout import MemoryFormat, contiguous_format

Array = Any

_HALF = frozenset({"float16", "bfloat16"})


def convolve(
    xp: ModuleType, input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """(N, O, out...) in memory_format from input (N, C, d...) and weight (O, C / groups, kernel...)."""
    kind = input.dtype
    input, weight, bias = _widened(xp, input, weight, bias)
    out = window.positions(input.shape[2:], weight.shape[2:])
    rows = columns(xp, channels_last(input), weight.shape[2:], window, out)
    products = matmul(xp, rows, weight_matrices(weight, window.groups).swapaxes(-1, -2))
    result = products.swapaxes(0, 1).reshape(input.shape[0], *out, weight.shape[0])
    if bias is not None:
        result = result + bias
    return laid_out(xp, result, memory_format).astype(kind, copy=False)


def convolve_transposed(
    xp: ModuleType,
    input: Array,
    weight: Array,
    bias: Array,
    size: Axes,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> Array:
    """The adjoint of `convolve` in its input: (N, C, size...) from (N, O, out...) and the same weight."""
    kind = input.dtype
    input, weight, bias = _widened(xp, input, weight, bias)
    rows = grouped(channels_last(input).reshape(-1, weight.shape[0]), window.groups)
    shape = (input.shape[0], *size, weight.shape[1] * window.groups)
    matrices = matmul(xp, rows, weight_matrices(weight, window.groups))
    result = gather_columns(xp, matrices, shape, weight.shape[2:], window, input.shape[2:])
    if bias is not None:
        result += bias
    return laid_out(xp, result, memory_format).astype(kind, copy=False)


def weight_gradient(
    xp: ModuleType, gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes
) -> Array:
    """The adjoint of `convolve` in its weight: `size` (O, C / groups, kernel...), channels-last in memory.

    `weight_stride` is what the operator's rule promises; whoever needs it lays the result out.
    """
    kind = input.dtype
    gradient, input = _widened(xp, gradient, input)
    kernel = size[2:]
    rows = columns(xp, channels_last(input), kernel, window, gradient.shape[2:])
    per_group = grouped(channels_last(gradient).reshape(-1, size[0]), window.groups)
    matrices = matmul(xp, per_group.swapaxes(-1, -2), rows)  # (G, O / G, kernel... * C / G)
    return channels_first(matrices.reshape(size[0], *kernel, size[1])).astype(kind, copy=False)


def _widened(xp: ModuleType, *arrays: Array) -> Any:
    """Half precision operands as float32: sums are taken there, as PyTorch does."""
    if arrays[0].dtype.name in _HALF:
        return tuple(None if array is None else array.astype(xp.float32) for array in arrays)
    return arrays


def weight_matrices(weight: Array, groups: int) -> Array:
    """Weight (O, C / G, kernel...) as (G, O / G, kernel... * C / G); a view of a channels-last weight."""
    return channels_last(weight).reshape(groups, weight.shape[0] // groups, -1)


def grouped(rows: Array, groups: int) -> Array:
    """Rows (M, G * K) as (G, M, K)."""
    return rows.reshape(rows.shape[0], groups, rows.shape[1] // groups).swapaxes(0, 1)


def laid_out(xp: ModuleType, image: Array, memory_format: MemoryFormat) -> Array:
    """(N, d..., C) as (N, C, d...) in a memory format."""
    result = channels_first(image)
    return xp.ascontiguousarray(result) if memory_format is contiguous_format else result


def _extent(size: Axes, kernel: Axes, window: ConvWindow, out: Axes) -> Axes:
    """The padded image that `out` windows cover; more than the symmetric padding where output_padding added windows."""
    return tuple(
        max(old + 2 * before, (positions - 1) * step + reach)
        for old, before, positions, step, reach in zip(
            size, window.padding, out, window.stride, window.spread(kernel), strict=True
        )
    )


def columns(xp: ModuleType, image: Array, kernel: Axes, window: ConvWindow, out: Axes) -> Array:
    """Columns (G, N * out..., kernel... * C / G) of an image (N, d..., C)."""
    batch, size, channels = image.shape[0], image.shape[1:-1], image.shape[-1]
    groups = window.groups
    if not any(window.padding) and prod(kernel) == prod(window.stride) == 1 and out == size:
        return grouped(image.reshape(batch * prod(size), channels), groups)
    after = tuple(
        all_of - old - before
        for all_of, old, before in zip(_extent(size, kernel, window, out), size, window.padding, strict=True)
    )
    view = patches(xp, padded(xp, image, window.padding, after), kernel, window.stride, window.dilation, out)
    split = view.reshape(*view.shape[:-1], groups, channels // groups)
    at = split.ndim - 2
    width = prod(kernel) * (channels // groups)
    return split.transpose(at, *range(at), at + 1).reshape(groups, batch * prod(out), width)


def gather_columns(xp: ModuleType, matrices: Array, shape: Axes, kernel: Axes, window: ConvWindow, out: Axes) -> Array:
    """The adjoint of `columns`: an image of `shape` (N, d..., C), every pixel the sum of its copies."""
    groups, batch, size = len(matrices), shape[0], shape[1:-1]
    width = shape[-1] // groups
    total = xp.zeros((batch, *_extent(size, kernel, window, out), shape[-1]), matrices.dtype)
    parts = matrices.reshape(groups, batch, *out, *kernel, width)
    for tap in np.ndindex(*kernel):
        where = tuple(
            slice(at * by, at * by + (positions - 1) * step + 1, step)
            for at, by, positions, step in zip(tap, window.dilation, out, window.stride, strict=True)
        )
        for group in range(groups):
            target = total[(slice(None), *where, slice(group * width, (group + 1) * width))]
            target += parts[(group, slice(None), *(slice(None),) * len(out), *tap)]
    inside = tuple(slice(before, before + old) for before, old in zip(window.padding, size, strict=True))
    return xp.ascontiguousarray(total[(slice(None), *inside)])
