"""Convolution with windows of one pixel on the CPU: one matrix product over the pixels of all images.

Images are (N, C, H, W) and change to channels-last and back where they are row-major. There is nothing to pack and no
window to plan, which counts where images are small: the 1x1 images of squeeze-and-excitation above all.
"""

from typing import Any

import numpy as np

from engine.ops.conv.columns import in_channels_last, is_pointwise, laid_out
from engine.ops.conv.kernels import columns as kernels
from engine.ops.matmul.kernels.product import dot
from engine.ops.shared.windows import Axes, ConvWindow, channels_first
from engine.rules.layout import MemoryFormat

Array = Any


def serves(window: ConvWindow, kernel: Axes, size: Axes, out: Axes) -> bool:
    """Whether these are such windows, over one or two axes; a transposed convolution may still make room at the end.

    One thread, AVX-512, forward, gradients of input and weight, µs, by `engine.ops.conv.direct` and here: 960 to 240
    channels, 2 images of 1x1: 162, 198, 313 and 24, 25, 31; 160 to 960, 2 of 4x4: 231, 320, 322 and 172, 147, 129.
    """
    return len(kernel) < 3 and size == out and is_pointwise(kernel, window)


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    return _multiplied(input, _matrix(weight).T, bias, memory_format)


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias."""
    return _multiplied(gradient, _matrix(weight), None, memory_format)


def weight_gradient(gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; channels-last in memory."""
    slopes, rows = _rows(gradient), _rows(input)
    return channels_first(dot(slopes.T, rows)[:, None, None])


def _matrix(weight: Array) -> Array:
    """(O, C) of (O, C, 1, 1)."""
    return weight.reshape(weight.shape[:2])


def _rows(image: Array) -> Array:
    """(N * H * W, C) of (N, C, H, W)."""
    return in_channels_last(image).reshape(-1, image.shape[1])


def _multiplied(image: Array, matrix: Array, bias: Array, memory_format: MemoryFormat) -> Array:
    rows = dot(_rows(image), matrix)
    if bias is not None:
        kernels.add_to_rows(rows, np.ascontiguousarray(bias))
    return laid_out(rows.reshape(image.shape[0], *image.shape[2:], -1), memory_format)
