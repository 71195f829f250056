"""Two-dimensional convolution of float32 and float64 on the CPU: columns in cache-sized tiles and one BLAS call a tile.

Images are (N, C, H, W) in any layout; channels-last is the one that is computed in, so a channels-last network never changes
layout and a row-major one changes it once on each side. Two cases stay row-major because that is cheaper there: kernels of
1x1 (no columns are needed) and inputs of few channels (the columns are few and the layout change would cost more).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.kernels import conv as kernels
from engine.layout import MemoryFormat, contiguous_format
from engine.ops.windows import channels_first, channels_last

Array = Any
Pair = tuple[int, int]
Tile = tuple[slice, Pair]

# Columns of a tile. 3x3, 32 -> 64 channels, 14x14, batch 64, forward: TILE ms at 0.5, 1, 2, 4 MiB and all at once.
_TILE_BYTES = 1 << 20
# Row-major columns pay up to this many a pixel: 3x3 on 1 channel, 28x28, batch 64: 0.7 ms against 1.6.
_FEW_COLUMNS = 64
_MANY_PIXELS = 64


def forward(
    input: Array,
    weight: Array,
    bias: Array,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    out: Pair,
    memory_format: MemoryFormat,
) -> Array:
    """See `engine.ops.conv_arrays.convolve`."""
    kernel = weight.shape[2:]
    outputs = weight.shape[0]
    shape = (input.shape[0], outputs, *out)
    if memory_format is contiguous_format and groups == 1 and _planes(input, kernel, stride, padding, out):
        return _forward_planes(input, weight, bias, stride, padding, dilation, shape)
    image = np.ascontiguousarray(channels_last(input))
    matrices = weight_matrices(weight, groups)
    result = np.empty((shape[0], *out, outputs), input.dtype)
    width = outputs // groups
    for (images, part), columns in _tiles(image, kernel, stride, padding, dilation, groups, out):
        rows = result[images, part[0] : part[1]].reshape(-1, outputs)
        for group in range(groups):
            np.matmul(columns[group], matrices[group].T, out=rows[:, group * width : (group + 1) * width])
        if bias is not None:
            kernels.add_to_rows(rows, np.ascontiguousarray(bias))
    return np.ascontiguousarray(channels_first(result)) if memory_format is contiguous_format else channels_first(result)


def input_gradient(
    gradient: Array,
    weight: Array,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    size: Pair,
    memory_format: MemoryFormat,
) -> Array:
    """See `engine.ops.conv_arrays.convolve_transposed`."""
    kernel, outputs = weight.shape[2:], weight.shape[0]
    channels = weight.shape[1] * groups
    batch, out = gradient.shape[0], gradient.shape[2:]
    pointwise = _is_pointwise(kernel, stride, padding) and groups == 1 and size == out
    if pointwise and memory_format is contiguous_format and _planes(gradient, kernel, stride, padding, size):
        matrix = np.ascontiguousarray(weight).reshape(outputs, -1)
        return np.matmul(matrix.T, gradient.reshape(batch, outputs, -1)).reshape(batch, channels, *size)
    image = np.ascontiguousarray(channels_last(gradient))
    matrices = weight_matrices(weight, groups)
    if pointwise:
        result = np.matmul(image, matrices[0])
    else:
        result = np.zeros((batch, *size, channels), gradient.dtype)
        width = outputs // groups
        buffer = None
        for images, part in _parts(batch, out, kernel[0] * kernel[1] * channels * gradient.itemsize):
            rows = image[images, part[0] : part[1]].reshape(-1, outputs)
            shape = (groups, len(rows), matrices.shape[2])
            if buffer is None or buffer.shape != shape:
                buffer = np.empty(shape, gradient.dtype)
            for group in range(groups):
                np.matmul(rows[:, group * width : (group + 1) * width], matrices[group], out=buffer[group])
            target = result[images]
            kernels.col2im(
                buffer, target.shape, kernel, stride=stride, padding=padding, dilation=dilation, part=(part, out[1]), out=target
            )
    return np.ascontiguousarray(channels_first(result)) if memory_format is contiguous_format else channels_first(result)


def weight_gradient(
    gradient: Array,
    input: Array,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    size: tuple[int, ...],
) -> Array:
    """See `engine.ops.conv_arrays.weight_gradient`."""
    kernel, outputs = size[2:], size[0]
    out = gradient.shape[2:]
    if groups == 1 and gradient.flags.c_contiguous and _planes(input, kernel, stride, padding, out):
        return _weight_gradient_planes(gradient, input, stride, padding, dilation, size)
    image, gradient_image = np.ascontiguousarray(channels_last(input)), np.ascontiguousarray(channels_last(gradient))
    width = outputs // groups
    total = np.zeros((groups, width, kernel[0] * kernel[1] * size[1]), input.dtype)
    product = np.empty(total.shape[1:], input.dtype)
    for (images, part), columns in _tiles(image, kernel, stride, padding, dilation, groups, out):
        rows = gradient_image[images, part[0] : part[1]].reshape(-1, outputs)
        for group in range(groups):
            np.matmul(rows[:, group * width : (group + 1) * width].T, columns[group], out=product)
            total[group] += product
    return channels_first(total.reshape(outputs, *kernel, size[1]))


def in_one_layout(gradient: Array, input: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
    """The gradient as both `input_gradient` and `weight_gradient` read it, so that the layout changes once, not twice."""
    if _planes(input, kernel, stride, padding, gradient.shape[2:]):
        return gradient
    return channels_first(np.ascontiguousarray(channels_last(gradient)))


def weight_matrices(weight: Array, groups: int) -> Array:
    """Weight (O, C / G, KH, KW) as (G, O / G, KH * KW * C / G); a view of a channels-last weight."""
    return np.ascontiguousarray(channels_last(weight)).reshape(groups, weight.shape[0] // groups, -1)


def _is_pointwise(kernel: Pair, stride: Pair, padding: Pair) -> bool:
    return kernel == (1, 1) and stride == (1, 1) and padding == (0, 0)


def _parts(batch: int, out: Pair, row_bytes: int) -> Iterator[Tile]:
    """The output in tiles of about _TILE_BYTES of columns: several whole images, or some rows of one."""
    image_bytes = out[0] * out[1] * row_bytes
    images = max(_TILE_BYTES // max(image_bytes, 1), 1)
    rows = out[0] if images > 1 else max(_TILE_BYTES // max(out[1] * row_bytes, 1), 1)
    for first in range(0, batch, images):
        for row in range(0, out[0], rows):
            yield slice(first, min(first + images, batch)), (row, min(row + rows, out[0]))


def _tiles(
    image: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int, out: Pair
) -> Iterator[tuple[Tile, Array]]:
    """Tiles and their columns (G, rows, KH * KW * C / G); the memory of the columns is used again for the next tile."""
    channels = image.shape[-1]
    if _is_pointwise(kernel, stride, padding) and groups == 1 and out == image.shape[1:3]:
        yield (slice(None), (0, out[0])), image.reshape(1, -1, channels)
        return
    width = kernel[0] * kernel[1] * channels
    buffer = None
    for images, part in _parts(len(image), out, width * image.itemsize):
        some = image[images]
        shape = (groups, len(some) * (part[1] - part[0]) * out[1], width // groups)
        if buffer is None or buffer.shape != shape:
            buffer = np.empty(shape, image.dtype)
        kernels.im2col(
            some, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, part=(part, out[1]), out=buffer
        )
        yield (images, part), buffer


# --- row-major --------------------------------------------------------------------------------------------------------


def _planes(input: Array, kernel: Pair, stride: Pair, padding: Pair, out: Pair) -> bool:
    """Whether the columns of a row-major input are better made row-major as well."""
    if not input.flags.c_contiguous or out[0] * out[1] < _MANY_PIXELS:
        return False
    return _is_pointwise(kernel, stride, padding) or kernel[0] * kernel[1] * input.shape[1] <= _FEW_COLUMNS


def _plane_tiles(
    input: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out: Pair
) -> Iterator[tuple[slice, Array]]:
    """Some images at a time and their columns (images, C * KH * KW, OH * OW)."""
    batch, channels, height, width = input.shape
    if _is_pointwise(kernel, stride, padding) and out == (height, width):
        yield slice(None), input.reshape(batch, channels, -1)
        return
    taps = kernel[0] * kernel[1]
    at_once = max(_TILE_BYTES // (channels * taps * out[0] * out[1] * input.itemsize), 1)
    wide_height = max(height + 2 * padding[0], (out[0] - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1)
    wide_width = max(width + 2 * padding[1], (out[1] - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1)
    wide = np.zeros((at_once, channels, wide_height, wide_width), input.dtype)
    buffer = np.empty((at_once, channels, *kernel, *out), input.dtype)
    for first in range(0, batch, at_once):
        images = slice(first, min(first + at_once, batch))
        some = input[images]
        wide[: len(some), :, padding[0] : padding[0] + height, padding[1] : padding[1] + width] = some
        for i in range(kernel[0]):
            top = i * dilation[0]
            for j in range(kernel[1]):
                left = j * dilation[1]
                buffer[: len(some), :, i, j] = wide[
                    : len(some),
                    :,
                    top : top + (out[0] - 1) * stride[0] + 1 : stride[0],
                    left : left + (out[1] - 1) * stride[1] + 1 : stride[1],
                ]
        yield images, buffer[: len(some)].reshape(len(some), channels * taps, -1)


def _forward_planes(
    input: Array, weight: Array, bias: Array, stride: Pair, padding: Pair, dilation: Pair, shape: tuple[int, ...]
) -> Array:
    matrix = np.ascontiguousarray(weight).reshape(shape[1], -1)
    result = np.empty(shape, input.dtype)
    flat = result.reshape(*shape[:2], -1)
    for images, columns in _plane_tiles(input, weight.shape[2:], stride, padding, dilation, shape[2:]):
        some = flat[images]
        np.matmul(matrix, columns, out=some)
        if bias is not None:
            some += bias[:, None]
    return result


def _weight_gradient_planes(
    gradient: Array, input: Array, stride: Pair, padding: Pair, dilation: Pair, size: tuple[int, ...]
) -> Array:
    total = np.zeros((size[0], size[1] * size[2] * size[3]), input.dtype)
    product = np.empty_like(total)
    rows = gradient.reshape(*gradient.shape[:2], -1)
    for images, columns in _plane_tiles(input, size[2:], stride, padding, dilation, gradient.shape[2:]):
        for one, other in zip(rows[images], columns, strict=True):
            np.matmul(one, other.T, out=product)
            total += product
    return total.reshape(size)
