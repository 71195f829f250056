"""Convolution with windows of one pixel on the CPU: a matrix product.

Images are (N, C, H, W). Row-major ones of many pixels are factors as they lie, one product an image; of others the
pixels of all images are, which changes row-major ones to channels-last and back. There is nothing to pack and no window
to plan, which counts where images are small: the 1x1 images of squeeze-and-excitation above all.
"""

from math import prod
from typing import Any

import numpy as np

from engine.ops.conv.images import in_channels_last, laid_out
from engine.ops.matmul.kernels import bias as bias_kernels
from engine.ops.matmul.kernels import product as matrix_product
from engine.ops.matmul.kernels.product import dot
from engine.ops.shared.windows import Axes, ConvWindow, channels_first
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.sharing import threads

Array = Any

# Of a row-major image, from which it is a factor as it lies. One thread, Zen 4, 16 images, 64 to 64 channels, ms
# forward, gradients of weight and input, as they lie and by channels-last: 56x56, 6.9, 6.0, 5.7 and 11.5, 11.8, 11.0;
# 8x8, 0.10, 0.17, 0.08 and 0.12, 0.12, 0.11.
_MANY_PIXELS = 64
_PRODUCTS_BYTES = 1 << 24  # of one product an image, so that threads can make them at once


def serves(window: ConvWindow, kernel: Axes, size: Axes, out: Axes) -> bool:
    """Whether these are such windows, over one or two axes; a transposed convolution may still make room at the end.

    One thread, AVX-512, forward, gradients of input and weight, µs, by `engine.ops.conv.direct` and here: 960 to 240
    channels, 2 images of 1x1: 162, 198, 313 and 24, 25, 31; 160 to 960, 2 of 4x4: 231, 320, 322 and 172, 147, 129.
    """
    whole = prod(kernel) == prod(window.stride) == window.groups == 1 and not any(window.padding)
    return len(kernel) < 3 and size == out and whole


def lies_in_rows(image: Array) -> bool:
    """Whether this image is a factor as it lies."""
    return image.flags.c_contiguous and prod(image.shape[2:]) >= _MANY_PIXELS


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    return _multiplied(input, _matrix(weight), bias, memory_format)


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias."""
    return _multiplied(gradient, _matrix(weight).T, None, memory_format)


def weight_gradient(gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; channels-last or row-major in memory, which are the same here."""
    if gradient.flags.c_contiguous and lies_in_rows(input):
        return _image_by_image(gradient, input).reshape(size)
    slopes, rows = _rows(gradient), _rows(input)
    return channels_first(dot(slopes.T, rows)[:, None, None])


def _matrix(weight: Array) -> Array:
    """(O, C) of (O, C, 1, 1)."""
    return weight.reshape(weight.shape[:2])


def _rows(image: Array) -> Array:
    """(N * H * W, C) of (N, C, H, W)."""
    return in_channels_last(image).reshape(-1, image.shape[1])


def _multiplied(image: Array, matrix: Array, bias: Array, memory_format: MemoryFormat) -> Array:
    """The matrix times each pixel."""
    if memory_format is contiguous_format and lies_in_rows(image):
        return _multiplied_in_rows(image, np.ascontiguousarray(matrix), bias)
    rows = dot(_rows(image), matrix.T)
    if bias is not None:
        bias_kernels.add_bias(rows, np.ascontiguousarray(bias))
    return laid_out(rows.reshape(image.shape[0], *image.shape[2:], -1), memory_format)


def _multiplied_in_rows(image: Array, matrix: Array, bias: Array) -> Array:
    result = np.empty((len(image), len(matrix), *image.shape[2:]), image.dtype)
    source, flat = image.reshape(*image.shape[:2], -1), result.reshape(*result.shape[:2], -1)

    def compute(part: slice) -> None:
        some = flat[part]
        np.matmul(matrix, source[part], out=some)
        if bias is not None:
            some += bias[:, None]

    threads.in_pieces(compute, len(image), flat.size * matrix.shape[1] // threads.PRODUCTS)
    return result


def _image_by_image(gradient: Array, input: Array) -> Array:
    """(O, C), the sum of a product an image, in their order on any number of threads."""
    rows, pixels = (each.reshape(*each.shape[:2], -1) for each in (gradient, input))
    total = np.zeros((gradient.shape[1], input.shape[1]), input.dtype)
    if threads.usable_threads() > 1 and len(input) * total.nbytes <= _PRODUCTS_BYTES:
        products = np.empty((len(input), *total.shape), total.dtype)

        def compute(part: slice) -> None:
            for one, other, place in zip(rows[part], pixels[part], products[part], strict=True):
                _multiply(one, other.T, place)

        threads.in_pieces(compute, len(input), rows.size * input.shape[1] // threads.PRODUCTS)
        for product in products:
            total += product
        return total
    product = np.empty_like(total)
    for one, other in zip(rows, pixels, strict=True):
        _multiply(one, other.T, product)
        total += product
    return total


def _multiply(a: Array, b: Array, out: Array) -> None:
    """``out = a @ b`` on the thread that calls; the same way, so the same bits, on any number of threads.

    4 images of 128 x 196 by 196 x 512: OpenBLAS 85 GFLOP/s on Zen 4 with AVX-512, the kernel 102.
    """
    if a.shape[0] * a.shape[1] * b.shape[1] >= matrix_product.FROM and matrix_product.serves(a, b):
        matrix_product.multiply(a, b, out)
    else:
        np.matmul(a, b, out=out)
