"""Convolution on raw arrays, any number of spatial axes: the three bilinear maps as matrix products over window columns.

Images are channels-last inside, (N, d..., C), and columns one matrix a group, (G, windows, kernel... * C / G), ordered as a
channels-last weight lies in memory; a channels-last weight is then a matrix operand without a copy. Works for NumPy and
CuPy, any dtype; `engine.ops.conv_cpu` is the fast path.
"""

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.layout import MemoryFormat, contiguous_format
from engine.ops.windows import channels_first, channels_last, padded, patches

Array = Any
Axes = tuple[int, ...]


def convolve(
    xp: ModuleType,
    input: Array,
    weight: Array,
    bias: Array,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    out: Axes,
    memory_format: MemoryFormat,
) -> Array:
    """The convolution (N, O, out...) of input (N, C, d...) and weight (O, C / groups, kernel...), laid out in memory_format."""
    image, matrix = channels_last(input), weight_matrix(weight, groups)
    rows = columns(xp, image, weight.shape[2:], stride, padding, dilation, groups, out)
    result = xp.empty((input.shape[0], *out, weight.shape[0]), input.dtype)
    product(xp, rows, matrix.swapaxes(-1, -2), result.reshape(-1, weight.shape[0]))
    if bias is not None:
        result += bias
    return laid_out(xp, result, memory_format)


def convolve_transposed(
    xp: ModuleType,
    gradient: Array,
    weight: Array,
    bias: Array,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    size: Axes,
    memory_format: MemoryFormat,
) -> Array:
    """The adjoint of `convolve` in its input: (N, C, size...) from gradient (N, O, out...) and weight (O, C / groups, kernel...)."""
    rows = channels_last(gradient)
    matrix = weight_matrix(weight, groups)
    channels = weight.shape[1] * groups
    columns_gradient = grouped(rows.reshape(-1, weight.shape[0]), groups) @ matrix
    shape = (gradient.shape[0], *size, channels)
    result = gather_columns(xp, columns_gradient, shape, weight.shape[2:], stride, padding, dilation, gradient.shape[2:])
    if bias is not None:
        result += bias
    return laid_out(xp, result, memory_format)


def weight_gradient(
    xp: ModuleType,
    gradient: Array,
    input: Array,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    size: Axes,
) -> Array:
    """The adjoint of `convolve` in its weight: `size` (O, C / groups, kernel...), channels-last in memory."""
    kernel = size[2:]
    rows = columns(xp, channels_last(input), kernel, stride, padding, dilation, groups, gradient.shape[2:])
    per_group = grouped(channels_last(gradient).reshape(-1, size[0]), groups)
    matrix = per_group.swapaxes(-1, -2) @ rows  # (G, O / G, kernel... * C / G)
    return channels_first(matrix.reshape(size[0], *kernel, size[1]))


def weight_matrix(weight: Array, groups: int) -> Array:
    """Weight (O, C / G, kernel...) as (G, O / G, kernel... * C / G)."""
    return channels_last(weight).reshape(groups, weight.shape[0] // groups, -1)


def grouped(rows: Array, groups: int) -> Array:
    """Rows (M, G * K) as (G, M, K)."""
    return rows.reshape(rows.shape[0], groups, -1).swapaxes(0, 1)


def product(xp: ModuleType, rows: Array, matrices: Array, out: Array) -> None:
    """out (M, G * K) = rows (G, M, J) @ matrices (G, J, K), group by group."""
    if len(rows) == 1:
        xp.matmul(rows[0], matrices[0], out=out)
    else:
        grouped(out, len(rows))[...] = xp.matmul(rows, matrices)


def laid_out(xp: ModuleType, image: Array, memory_format: MemoryFormat) -> Array:
    """(N, d..., C) as (N, C, d...) in a memory format."""
    result = channels_first(image)
    return xp.ascontiguousarray(result) if memory_format is contiguous_format else result


def columns(
    xp: ModuleType,
    image: Array,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    groups: int,
    out: Axes,
) -> Array:
    """Columns (G, N * out..., kernel... * C / G) of an image (N, d..., C)."""
    batch, channels = image.shape[0], image.shape[-1]
    if not any(padding) and prod(kernel) == prod(stride) == 1 and out == image.shape[1:-1]:
        return grouped(image.reshape(-1, channels), groups)
    after = tuple(
        max((positions - 1) * step + by * (window - 1) + 1 - size - before, 0)
        for positions, step, by, window, size, before in zip(
            out, stride, dilation, kernel, image.shape[1:-1], padding, strict=True
        )
    )
    view = patches(xp, padded(xp, image, padding, after), kernel, stride, dilation, out)
    split = view.reshape(*view.shape[:-1], groups, channels // groups) if groups > 1 else view[..., None, :]
    at = split.ndim - 2
    return split.transpose(at, *range(at), at + 1).reshape(groups, batch * prod(out), -1)


def gather_columns(
    xp: ModuleType,
    matrix: Array,
    shape: Axes,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    out: Axes,
) -> Array:
    """The adjoint of `columns`: an image of `shape` (N, d..., C), every pixel the sum of its copies."""
    batch, channels = shape[0], shape[-1]
    groups = len(matrix)
    spatial = tuple(
        max(size + 2 * before, (positions - 1) * step + by * (window - 1) + 1)
        for size, before, positions, step, by, window in zip(
            shape[1:-1], padding, out, stride, dilation, kernel, strict=True
        )
    )
    total = xp.zeros((batch, *spatial, channels), matrix.dtype)
    parts = matrix.reshape(groups, batch, *out, *kernel, channels // groups)
    width = channels // groups
    for tap in np.ndindex(*kernel):
        where = tuple(
            slice(at * by, at * by + (positions - 1) * step + 1, step)
            for at, by, positions, step in zip(tap, dilation, out, stride, strict=True)
        )
        for group in range(groups):
            target = total[(slice(None), *where, slice(group * width, (group + 1) * width))]
            target += parts[(group, slice(None), *(slice(None),) * len(out), *tap)]
    inside = tuple(slice(before, before + size) for before, size in zip(padding, shape[1:-1], strict=True))
    return xp.ascontiguousarray(total[(slice(None), *inside)])
