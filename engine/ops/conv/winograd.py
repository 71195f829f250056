"""Convolution by 3x3 windows of stride 1, and by 4x4 windows of stride 2, on the CPU with 2.25 and 1.78 times fewer
products: `engine.ops.conv.kernels.winograd`.

Images are (N, C, H, W) in any layout, computed in channels-last as by `engine.ops.conv.direct`. All conditions are of
shapes, so that every CPU takes the same way. Sums have a ninth of the terms with windows of three, so that errors are
half those of the direct kernels (64 to 64 channels, 16 images of 56x56: 2.6e-7 of the root mean square instead of
4.3e-7); with windows of four they are larger by a twentieth.

The gradient of the weight is left to the direct kernels, though it would gain as much: where all its terms are zero, as
behind activations that are zero often, it is zero there, and here what rounding has left of its neighbours', which Adam
takes for a gradient like any other. A small network's losses were 5e-5 off after 20 steps instead of 8e-7.

An infinity makes the other pixels of its tile NaN, as they are in cuDNN's.
"""

from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from engine.ops.conv.images import Array, Result, Three, as_volumes, in_groups, padded, three
from engine.ops.conv.kernels import packing
from engine.ops.conv.kernels import winograd as kernels
from engine.ops.conv.kernels.winograd import Grid
from engine.ops.shared.windows import Axes, ConvWindow
from engine.rules.layout import MemoryFormat
from engine.sharing import threads

_TAPS = {(3, 1): 3, (4, 2): 2}  # of one phase, by extent and stride of the window
_FEWEST_CHANNELS = 16  # a vector of every CPU
_FEWEST_PAIRS = {3: 512, 2: 2048}  # of channels, by taps: with less to multiply, the other basis costs what it spares
_FEWEST_PIXELS = 256  # of all images: below, it costs more to bring the weights into the other basis
_MOST_WASTE = 1.5  # pixels of whole tiles for one of the output


def serves(window: ConvWindow, weight: Axes, batch: int, out: Axes) -> bool:
    """Whether `forward` is better, for a weight of this shape and `out` pixels of each image."""
    if len(weight) != 4 or window.groups != 1 or weight[2] != weight[3] or window.stride[0] != window.stride[1]:
        return False
    stride = window.stride[0]
    taps = _TAPS.get((weight[2], stride))
    if taps is None or (stride > 1 and window.dilation != (1, 1)):
        return False
    pixels, whole = batch * prod(out), batch * prod(_whole(out, window.dilation))
    return (
        all(padding <= (taps - 1) * stride * gap for padding, gap in zip(window.padding, window.dilation, strict=True))
        and min(weight[:2]) >= _FEWEST_CHANNELS
        and weight[0] * weight[1] >= _FEWEST_PAIRS[taps]
        and pixels >= _FEWEST_PIXELS
        and whole <= _MOST_WASTE * pixels
    )


def serves_input_gradient(window: ConvWindow, weight: Axes, batch: int, size: Axes) -> bool:
    """The same of `input_gradient`, for an input of this size."""
    part = tuple(-(-extent // stride) for extent, stride in zip(size, window.stride, strict=True))
    return serves(window, weight, batch, part)


def _whole(out: Axes, gap: Axes) -> Axes:
    """The extent of whole tiles."""
    return tuple(-(-extent // (2 * apart)) * 2 * apart for extent, apart in zip(out, gap, strict=True))


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    out = window.positions(input.shape[2:], weight.shape[2:])
    return _correlate(input, weight, _whole_window(out, weight.shape[2], window), bias, out, memory_format)


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias."""
    turned = weight.swapaxes(0, 1)[:, :, ::-1, ::-1]
    return _correlate(gradient, turned, _phases(size, weight.shape[2], window), None, size, memory_format)


class _Tiling(NamedTuple):
    """What is computed of images by which of the taps."""

    parts: list[tuple[Grid, slice, slice]]
    """Of the output, and the rows and columns of the window."""
    before: Three
    """Zeros in front of an image,"""
    size: Three
    """and its size with them and with all that whole tiles meet."""
    inside: tuple[slice, ...]
    """What windows meet of it; more may lie behind."""


@lru_cache(4096)
def _whole_window(out: Axes, extent: int, window: ConvWindow) -> _Tiling:
    """Of the output of a convolution."""
    grid = Grid(window.dilation, window.stride[0], (0, 0), 1, (0, 0))
    return _tiling(out, [(grid, slice(None), slice(None))], extent // window.stride[0], window.padding)


@lru_cache(4096)
def _phases(size: Axes, extent: int, window: ConvWindow) -> _Tiling:
    """Of the gradient of an input. With a stride of 2 it has four parts, of odd and even rows and columns: each meets
    the taps of one phase.
    """
    stride = window.stride[0]
    reach = extent // stride - 1
    before = tuple(reach * gap - pad // stride for pad, gap in zip(window.padding, window.dilation, strict=True))
    parts = []
    for start in product(range(stride), repeat=2):
        # the row (column) of the padded image at which a part begins, and the first of its taps
        first = tuple((at + pad) // stride - pad // stride for at, pad in zip(start, window.padding, strict=True))
        rows, columns = (stride - 1 - (at + pad) % stride for at, pad in zip(start, window.padding, strict=True))
        grid = Grid(window.dilation, 1, first, stride, start)
        parts.append((grid, slice(rows, None, stride), slice(columns, None, stride)))
    return _tiling(size, parts, extent // stride, before)


def _tiling(out: Axes, parts: list[tuple[Grid, slice, slice]], taps: int, before: Axes) -> _Tiling:
    met = [_met(out, grid, taps - 1) for grid, _, _ in parts]
    size = tuple(map(max, zip(*met, strict=True)))
    inside = tuple(slice(max(extent - pad, 0)) for extent, pad in zip(size, before, strict=True))
    return _Tiling(parts, three(before, 0), three(size, 1), (slice(None), slice(None), *inside))


def _correlate(
    input: Array, weight: Array, tiling: _Tiling, bias: Array, out: Axes, memory_format: MemoryFormat
) -> Array:
    outputs, channels = weight.shape[:2]
    result = Result(len(input), outputs, out, input.dtype, memory_format)
    parts = []
    for grid, rows_of, columns_of in tiling.parts:
        packed = packing.pack(weight[:, :, np.newaxis, rows_of, columns_of], 1)
        parts.append((grid, kernels.widen(packed, grid.stride)))
    bias = None if bias is None else np.ascontiguousarray(bias)
    image = as_volumes(input[tiling.inside])

    def compute(images: slice) -> None:
        rows = result.open(images)
        some = padded(image[images], tiling.before, tiling.size)
        for grid, wide in parts:
            kernels.correlate(some, wide, bias, rows, grid)
        result.close(images, rows)

    work = len(input) * out[0] * out[1] * weight.size // len(parts) // threads.PRODUCTS
    threads.share(compute, in_groups(len(input), tiling.size, channels, parts[0][1]), work)
    return result.array


def _met(out: Axes, grid: Grid, reach: int) -> Axes:
    """The extent of the image that whole tiles of a part meet, whose filters reach so many taps further."""
    return tuple(
        first + grid.stride * (extent + reach * gap)
        for first, extent, gap in zip(grid.first, _whole(grid.extents(out), grid.gap), grid.gap, strict=True)
    )
