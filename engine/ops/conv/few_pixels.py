"""Convolution of few pixels by many weights on the CPU: one matrix product with the weight as it lies.

Images are (N, C, H, W) row-major. The deep layers of networks for small images have millions of weights for some
hundred pixels: to pack them for `engine.ops.conv.direct`, and their gradient back, takes longer than to multiply. Here
the windows become rows (`engine.ops.conv.kernels.unfold`), and the weight (O, C * KH * KW) is a factor without a copy.
"""

from math import prod
from typing import Any

import numpy as np

from engine.ops.conv.kernels import unfold as kernels
from engine.ops.matmul.kernels.product import dot
from engine.ops.shared.windows import Axes, ConvWindow
from engine.rules.layout import MemoryFormat
from engine.sharing import threads

Array = Any


def serves(window: ConvWindow, weight: Axes, batch: int, out: Axes, row_major: bool) -> bool:
    """Whether this is better, for a weight of this shape and `out` pixels of each image.

    One thread, AVX-512, 3x3: forward, gradients of input and weight, ms, by `engine.ops.conv.direct` and here: 512 to
    512 channels, 8 images of 2x2: 4.6, 4.9, 5.7 and 2.1, 3.5, 2.4; of 4x4: 8.0, 8.7, 9.4 and 7.2, 8.3, 7.1; 256 to 256,
    4x4: 1.76, 1.79, 2.01 and 1.86, 1.91, 1.81.
    """
    few = 4 * batch * prod(out) <= min(weight[:2])
    return few and window.groups == 1 and len(out) == 2 and row_major


def _moves(window: ConvWindow) -> Any:
    return window.stride, window.padding, window.dilation


def _rows(image: Array, kernel: Any, window: ConvWindow, out: Axes) -> Array:
    """(N * OH * OW, C * KH * KW) of an image."""
    image = np.ascontiguousarray(image)
    rows = np.empty((len(image), *out, image.shape[1] * prod(kernel)), image.dtype)
    threads.in_pieces(
        lambda part: kernels.unfold(image[part], kernel, _moves(window), rows[part]), len(image), 4 * rows.size
    )
    return rows.reshape(-1, rows.shape[3])


def _pixels(image: Array) -> Array:
    """(N * H * W, C) of (N, C, H, W)."""
    return np.ascontiguousarray(image.transpose(0, 2, 3, 1)).reshape(-1, image.shape[1])


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`; row-major."""
    out = window.positions(input.shape[2:], weight.shape[2:])
    rows = dot(_rows(input, weight.shape[2:], window, out), weight.reshape(len(weight), -1).T)
    if bias is not None:
        rows += bias
    return np.ascontiguousarray(rows.reshape(len(input), *out, -1).transpose(0, 3, 1, 2))


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; row-major, without the bias."""
    rows = dot(_pixels(gradient), weight.reshape(len(weight), -1)).reshape(len(gradient), *gradient.shape[2:], -1)
    result = np.empty((len(gradient), weight.shape[1], *size), gradient.dtype)
    threads.in_pieces(
        lambda part: kernels.fold(rows[part], weight.shape[2:], _moves(window), result[part]), len(rows), 4 * rows.size
    )
    return result


def weight_gradient(gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; row-major."""
    rows = _rows(input, size[2:], window, gradient.shape[2:])
    return dot(_pixels(gradient).T, rows).reshape(size)
