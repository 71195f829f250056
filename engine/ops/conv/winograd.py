"""Convolution by 3x3 windows of stride 1 on the CPU with 2.25 times fewer products: `engine.ops.conv.kernels.winograd`.

Images are (N, C, H, W) in any layout, computed in channels-last as by `engine.ops.conv.direct`. All conditions are of
shapes, so that every CPU takes the same way. Sums have a ninth of the terms: errors are half those of the direct
kernels, 64 to 64 channels, 16 images of 56x56: 2.6e-7 of the root mean square instead of 4.3e-7.

The gradient of the weight is left to the direct kernels, though it would gain as much: where all its terms are zero, as
behind activations that are zero often, it is zero there, and here what rounding has left of its neighbours', which Adam
takes for a gradient like any other. A small network's losses were 5e-5 off after 20 steps instead of 8e-7.

An infinity makes the other pixels of its tile NaN, as they are in cuDNN's.
"""

from functools import lru_cache
from math import prod

import numpy as np

from engine.ops.conv.images import Array, Result, Three, as_volumes, in_groups, padded, three
from engine.ops.conv.kernels import packing
from engine.ops.conv.kernels import winograd as kernels
from engine.ops.shared.windows import Axes, ConvWindow
from engine.rules.layout import MemoryFormat
from engine.sharing import threads

_FEWEST_CHANNELS = 16  # a vector of every CPU
_FEWEST_PAIRS = 512  # of channels: with less to multiply, the other basis costs more than it spares
_FEWEST_PIXELS = 512  # of all images: below, it costs more to bring the weights into the other basis
_MOST_WASTE = 1.5  # pixels of whole tiles for one of the output


@lru_cache(4096)
def serves(window: ConvWindow, weight: Axes, batch: int, out: Axes) -> bool:
    """Whether this is better, for a weight of this shape and `out` pixels of each image."""
    if weight[2:] != (3, 3) or window.groups != 1 or window.stride != (1, 1):
        return False
    pixels, whole = batch * prod(out), batch * prod(_whole(out, window))
    return (
        all(padding <= 2 * gap for padding, gap in zip(window.padding, window.dilation, strict=True))
        and min(weight[:2]) >= _FEWEST_CHANNELS
        and weight[0] * weight[1] >= _FEWEST_PAIRS
        and pixels >= _FEWEST_PIXELS
        and whole <= _MOST_WASTE * pixels
    )


def _whole(out: Axes, window: ConvWindow) -> Axes:
    """The extent of whole tiles."""
    return tuple(-(-extent // (2 * gap)) * 2 * gap for extent, gap in zip(out, window.dilation, strict=True))


def _met(out: Axes, window: ConvWindow) -> Three:
    """The extent of the image that whole tiles meet."""
    return (1, *(extent + 2 * gap for extent, gap in zip(_whole(out, window), window.dilation, strict=True)))


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    out = window.positions(input.shape[2:], weight.shape[2:])
    return _correlate(input, weight, bias, out, window, memory_format)


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias."""
    turned = weight.swapaxes(0, 1)[:, :, ::-1, ::-1]
    before = tuple(2 * gap - padding for padding, gap in zip(window.padding, window.dilation, strict=True))
    return _correlate(gradient, turned, None, size, window._replace(padding=before), memory_format)


def _correlate(
    input: Array, weight: Array, bias: Array, out: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    result = Result(len(input), len(weight), out, input.dtype, memory_format)
    image = as_volumes(input)
    wide = kernels.widen(packing.pack(weight[:, :, np.newaxis], 1))
    bias = None if bias is None else np.ascontiguousarray(bias)
    before, size = three(window.padding, 0), _met(out, window)

    def compute(images: slice) -> None:
        rows = result.open(images)
        kernels.correlate(padded(image[images], before, size), wide, bias, rows, window.dilation)
        result.close(images, rows)

    threads.share(compute, in_groups(len(input), size, image.shape[4], wide))
    return result.array
