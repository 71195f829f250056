"""The gradient of the input by columns, for float32 and float64 on the CPU: a matrix product makes them, and each is
added to the pixels of its window.

For what `engine.ops.conv.direct` does not serve: inputs of few channels, to which that would compute vectors that are
mostly empty, and windows that have both strides and gaps. Images are (N, C, H, W) in any layout and computed in
channels-last.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.ops.conv.images import in_channels_last, laid_out
from engine.ops.conv.kernels import columns as kernels
from engine.ops.shared.windows import ConvWindow, channels_last
from engine.rules.layout import MemoryFormat

Array = Any
Pair = Any  # tuple[int, int]
Tile = tuple[slice, tuple[int, int]]  # some images, and the first and last row of the output

# Columns of a tile, so that they stay in the cache between the product and their sums. Measured while forward made
# columns, too: 3x3, 32 -> 64 channels, 14x14, batch 64: 6.2, 5.7, 5.5, 5.5 and 6.3 ms at 0.25, 0.5, 2, 4 and 16 MiB.
_TILE_BYTES = 1 << 21


def input_gradient(
    gradient: Array, weight: Array, size: Pair, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias."""
    kernel, outputs, groups = weight.shape[2:], weight.shape[0], window.groups
    batch, channels, out = gradient.shape[0], weight.shape[1] * groups, gradient.shape[2:]
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


def _matrices(weight: Array, groups: int) -> Array:
    """Weight (O, C / G, KH, KW) as (G, O / G, KH * KW * C / G); a view of a channels-last weight."""
    return np.ascontiguousarray(channels_last(weight)).reshape(groups, weight.shape[0] // groups, -1)


def _moves(window: ConvWindow) -> tuple[Pair, Pair, Pair]:
    return window.stride, window.padding, window.dilation


def _parts(batch: int, out: Pair, row_bytes: int) -> Iterator[Tile]:
    """The output in tiles of about _TILE_BYTES of columns: several whole images, or some rows of one."""
    image_bytes = out[0] * out[1] * row_bytes
    images = max(_TILE_BYTES // max(image_bytes, 1), 1)
    rows = out[0] if images > 1 else max(_TILE_BYTES // max(out[1] * row_bytes, 1), 1)
    for first in range(0, batch, images):
        for row in range(0, out[0], rows):
            yield slice(first, min(first + images, batch)), (row, min(row + rows, out[0]))
