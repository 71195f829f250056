"""Two-dimensional convolution of float32 and float64 on the CPU: columns in cache-sized tiles and one BLAS call a tile.

Images are (N, C, H, W) in any layout; channels-last is the one that is computed in, so a channels-last network never
changes layout and a row-major one changes it once on each side. Two cases stay row-major because that is cheaper there:
kernels of 1x1 (no columns are needed) and inputs of few channels (the columns are few and the layout change would cost
more).
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.ops.conv.images import padded
from engine.ops.conv.kernels import columns as kernels
from engine.ops.conv.kernels import layout
from engine.ops.matmul.kernels import product as matrix_product
from engine.ops.shared.windows import Axes, ConvWindow, channels_first, channels_last
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.sharing import threads

Array = Any
Pair = Any  # tuple[int, int]
Tile = tuple[slice, tuple[int, int]]  # some images, and the first and last row of the output

# Columns of a tile. 3x3, 32 -> 64 channels, 14x14, batch 64, forward: 6.2, 5.7, 5.5, 5.5 and 6.3 ms at 0.25, 0.5, 2, 4
# and 16 MiB; the matrix product alone takes 5.4.
_TILE_BYTES = 1 << 21
_PRODUCTS_BYTES = 1 << 24  # of one product an image, so that threads can make them at once
# Row-major columns pay up to this many a pixel, from this many pixels: 3x3 on 1 channel, 28x28, 32 filters, batch 64,
# forward and weight gradient take 1.3 ms, through channels-last 2.9.
_FEW_COLUMNS = 64
_MANY_PIXELS = 64


def in_channels_last(image: Array) -> Array:
    """(N, C, H, W) as (N, H, W, C) row-major: 3.2 MB in 0.25 ms where numpy.ascontiguousarray takes 1.1."""
    rows = channels_last(image)
    return padded(rows[:, None], (0, 0, 0), (1, *rows.shape[1:3]))[:, 0]


def laid_out(rows: Array, memory_format: MemoryFormat) -> Array:
    """(N, H, W, C) row-major as (N, C, H, W) in a memory format."""
    if memory_format is not contiguous_format:
        return channels_first(rows)
    result = np.empty((rows.shape[0], rows.shape[3], *rows.shape[1:3]), rows.dtype)
    layout.place(rows[:, None], channels_last(result)[:, None])
    return result


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    kernel, outputs, groups = weight.shape[2:], weight.shape[0], window.groups
    out: Pair = window.positions(input.shape[2:], kernel)
    if memory_format is contiguous_format and _stays_row_major(input, kernel, window, out):
        return _forward_row_major(input, weight, bias, window, out)
    image = in_channels_last(input)
    matrices = _matrices(weight, groups)
    result = np.empty((input.shape[0], *out, outputs), input.dtype)
    width = outputs // groups
    for (images, part), columns in _tiles(image, kernel, window, out):
        rows = result[images, part[0] : part[1]].reshape(-1, outputs)
        for group in range(groups):
            np.matmul(columns[group], matrices[group].T, out=rows[:, group * width : (group + 1) * width])
        if bias is not None:
            kernels.add_to_rows(rows, np.ascontiguousarray(bias))
    return laid_out(result, memory_format)


def input_gradient(
    gradient: Array, weight: Array, size: Pair, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias."""
    kernel, outputs, groups = weight.shape[2:], weight.shape[0], window.groups
    batch, channels, out = gradient.shape[0], weight.shape[1] * groups, gradient.shape[2:]
    pointwise = is_pointwise(kernel, window) and size == out
    if pointwise and memory_format is contiguous_format and _stays_row_major(gradient, kernel, window, size):
        matrix = np.ascontiguousarray(weight).reshape(outputs, -1)
        return np.matmul(matrix.T, gradient.reshape(batch, outputs, -1)).reshape(batch, channels, *size)
    image = in_channels_last(gradient)
    matrices = _matrices(weight, groups)
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
        stride, padding, dilation = _moves(window)
        kernels.col2im(
            buffer,
            target.shape,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            part=(part, out[1]),
            out=target,
        )
    return laid_out(result, memory_format)


def weight_gradient(
    gradient: Array, input: Array, window: ConvWindow, size: tuple[int, ...], weight_stride: Axes
) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; channels-last or row-major in memory, whichever came cheaper."""
    kernel: Pair = size[2:]
    outputs, groups = size[0], window.groups
    out = gradient.shape[2:]
    if gradient.flags.c_contiguous and _stays_row_major(input, kernel, window, out):
        return _weight_gradient_row_major(gradient, input, window, size)
    image, gradient_image = in_channels_last(input), in_channels_last(gradient)
    width = outputs // groups
    total = np.zeros((groups, width, kernel[0] * kernel[1] * size[1]), input.dtype)
    product = np.empty(total.shape[1:], input.dtype)
    for (images, part), columns in _tiles(image, kernel, window, out):
        rows = gradient_image[images, part[0] : part[1]].reshape(-1, outputs)
        for group in range(groups):
            np.matmul(rows[:, group * width : (group + 1) * width].T, columns[group], out=product)
            total[group] += product
    return channels_first(total.reshape(outputs, *kernel, size[1]))


def in_one_layout(gradient: Array, input: Array, kernel: Pair, window: ConvWindow) -> Array:
    """The gradient as both `input_gradient` and `weight_gradient` read it: the layout changes once, not twice."""
    if _stays_row_major(input, kernel, window, gradient.shape[2:]):
        return gradient
    return channels_first(in_channels_last(gradient))


def _matrices(weight: Array, groups: int) -> Array:
    """Weight (O, C / G, KH, KW) as (G, O / G, KH * KW * C / G); a view of a channels-last weight."""
    return np.ascontiguousarray(channels_last(weight)).reshape(groups, weight.shape[0] // groups, -1)


def _moves(window: ConvWindow) -> tuple[Pair, Pair, Pair]:
    return window.stride, window.padding, window.dilation


@lru_cache(4096)
def is_pointwise(kernel: Axes, window: ConvWindow) -> bool:
    """Whether each pixel of the output is made of one of the input, at the same place and of all channels."""
    return prod(kernel) == prod(window.stride) == window.groups == 1 and not any(window.padding)


def _parts(batch: int, out: Pair, row_bytes: int) -> Iterator[Tile]:
    """The output in tiles of about _TILE_BYTES of columns: several whole images, or some rows of one."""
    image_bytes = out[0] * out[1] * row_bytes
    images = max(_TILE_BYTES // max(image_bytes, 1), 1)
    rows = out[0] if images > 1 else max(_TILE_BYTES // max(out[1] * row_bytes, 1), 1)
    for first in range(0, batch, images):
        for row in range(0, out[0], rows):
            yield slice(first, min(first + images, batch)), (row, min(row + rows, out[0]))


def _tiles(image: Array, kernel: Pair, window: ConvWindow, out: Pair) -> Iterator[tuple[Tile, Array]]:
    """Tiles and their columns (G, rows, KH * KW * C / G); the memory of the columns is used again for the next tile."""
    channels, groups = image.shape[-1], window.groups
    width = kernel[0] * kernel[1] * channels
    stride, padding, dilation = _moves(window)
    buffer = None
    for images, part in _parts(len(image), out, width * image.itemsize):
        some = image[images]
        shape = (groups, len(some) * (part[1] - part[0]) * out[1], width // groups)
        if buffer is None or buffer.shape != shape:
            buffer = np.empty(shape, image.dtype)
        kernels.im2col(
            some,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            part=(part, out[1]),
            out=buffer,
        )
        yield (images, part), buffer


# --- row-major --------------------------------------------------------------------------------------------------------


def has_few(channels: int, kernel: Axes, window: ConvWindow, out: Axes) -> bool:
    """Whether `forward` would keep a two-dimensional row-major input so."""
    return len(kernel) == 2 and _has_few_columns(channels, kernel, window, out)


def _stays_row_major(input: Array, kernel: Pair, window: ConvWindow, out: Pair) -> bool:
    """Whether the columns of a row-major input are better made row-major as well."""
    return input.flags.c_contiguous and _has_few_columns(input.shape[1], kernel, window, out)


@lru_cache(4096)
def _has_few_columns(channels: int, kernel: Pair, window: ConvWindow, out: Pair) -> bool:
    if window.groups != 1 or out[0] * out[1] < _MANY_PIXELS:
        return False
    return is_pointwise(kernel, window) or kernel[0] * kernel[1] * channels <= _FEW_COLUMNS


def _row_major_tiles(input: Array, kernel: Pair, window: ConvWindow, out: Pair) -> Iterator[tuple[slice, Array]]:
    """Some images at a time and their columns (images, C * KH * KW, OH * OW)."""
    batch, channels, height, width = input.shape
    if is_pointwise(kernel, window) and out == (height, width):
        yield slice(None), input.reshape(batch, channels, -1)
        return
    stride, padding, dilation = _moves(window)
    size = channels * kernel[0] * kernel[1]
    at_once = min(max(_TILE_BYTES // (size * out[0] * out[1] * input.itemsize), 1), batch)
    reach = window.spread(kernel)
    wide_height = max(height + 2 * padding[0], (out[0] - 1) * stride[0] + reach[0])
    wide_width = max(width + 2 * padding[1], (out[1] - 1) * stride[1] + reach[1])
    wide = np.zeros((at_once, channels, wide_height, wide_width), input.dtype)
    buffer = np.empty((at_once, channels, *kernel, *out), input.dtype)
    for first in range(0, batch, at_once):
        images = slice(first, min(first + at_once, batch))
        some = input[images]
        wide[: len(some), :, padding[0] : padding[0] + height, padding[1] : padding[1] + width] = some
        for i, j in np.ndindex(*kernel):
            top, left = i * dilation[0], j * dilation[1]
            lines = slice(top, top + (out[0] - 1) * stride[0] + 1, stride[0])
            places = slice(left, left + (out[1] - 1) * stride[1] + 1, stride[1])
            buffer[: len(some), :, i, j] = wide[: len(some), :, lines, places]
        yield images, buffer[: len(some)].reshape(len(some), size, -1)


def _forward_row_major(input: Array, weight: Array, bias: Array, window: ConvWindow, out: Pair) -> Array:
    matrix = np.ascontiguousarray(weight).reshape(weight.shape[0], -1)
    result = np.empty((input.shape[0], weight.shape[0], *out), input.dtype)
    flat = result.reshape(*result.shape[:2], -1)

    def compute(part: slice) -> None:
        for images, columns in _row_major_tiles(input[part], weight.shape[2:], window, out):
            some = flat[part][images]
            np.matmul(matrix, columns, out=some)
            if bias is not None:
                some += bias[:, None]

    threads.in_pieces(compute, len(input), flat.size * matrix.shape[1] // threads.PRODUCTS)
    return result


def _weight_gradient_row_major(gradient: Array, input: Array, window: ConvWindow, size: tuple[int, ...]) -> Array:
    total = np.zeros((size[0], size[1] * size[2] * size[3]), input.dtype)
    rows = gradient.reshape(*gradient.shape[:2], -1)
    if threads.usable_threads() > 1 and len(input) * total.nbytes <= _PRODUCTS_BYTES:
        products = np.empty((len(input), *total.shape), total.dtype)

        def compute(part: slice) -> None:
            for images, columns in _row_major_tiles(input[part], size[2:], window, gradient.shape[2:]):
                for one, other, place in zip(rows[part][images], columns, products[part][images], strict=True):
                    _multiply(one, other.T, place)

        threads.in_pieces(compute, len(input), rows.size * total.shape[1] // threads.PRODUCTS)
        for product in products:  # in the order of the images, as one thread does it
            total += product
        return total.reshape(size)
    product = np.empty_like(total)
    for images, columns in _row_major_tiles(input, size[2:], window, gradient.shape[2:]):
        for one, other in zip(rows[images], columns, strict=True):
            _multiply(one, other.T, product)
            total += product
    return total.reshape(size)


def _multiply(a: Array, b: Array, out: Array) -> None:
    """``out = a @ b`` on the thread that calls; the same way, so the same bits, on any number of threads.

    4 images of 128 x 196 by 196 x 512: OpenBLAS 85 GFLOP/s on Zen 4 with AVX-512, the kernel 102.
    """
    if a.shape[0] * a.shape[1] * b.shape[1] >= matrix_product.FROM and matrix_product.serves(a, b):
        matrix_product.multiply(a, b, out)
    else:
        np.matmul(a, b, out=out)
