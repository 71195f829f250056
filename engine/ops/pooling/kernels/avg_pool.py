"""Average pooling over two dimensions, forward and backward, for channels-last images and for planes.

Layouts are those of `engine.ops.pooling.kernels.layout`, float32 or float64. The caller chooses the output size (that
is where ``ceil_mode`` lives); every window must overlap the image. Pairs are (height, width). Source:
torch.nn.functional.avg_pool2d (aten AvgPoolKernel.cpp).
"""

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import (
    Pair,
    Read1,
    Read3,
    Read4,
    Write1,
    Write3,
    Write4,
    flat,
    real,
)
from engine.kernels.windows import valid_columns
from engine.ops.pooling.kernels.layout import is_planes, laid_out
from engine.sharing import threads

Array = np.ndarray


def avg_pool2d_forward(
    image: Array,
    output_size: Pair,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """Averages: (N, OH, OW, C) for a 4-D image (channels-last), (P, OH, OW) for a 3-D one."""
    out = np.empty((image.shape[0], *output_size, *image.shape[3:]), image.dtype)
    run = (_avg_pool_planes if is_planes(image) else _avg_pool_channels_last)[image.dtype.char]
    source, target = laid_out(image), laid_out(out)
    window = kernel_size, stride, padding, count_include_pad, divisor_override or 0
    threads.in_pieces(lambda part: run(source[part], target[part], *window), len(image), image.size)
    return out


def avg_pool2d_backward(
    gradient: Array,
    image_shape: tuple[int, ...],
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    out: Array | None = None,
) -> Array:
    """Gradient of the image from that of the averages, both laid out as in :func:`avg_pool2d_forward`."""
    out = np.empty(image_shape, gradient.dtype) if out is None else out
    run = (_avg_pool_planes_backward if is_planes(gradient) else _avg_pool_channels_last_backward)[gradient.dtype.char]
    source, target = laid_out(gradient), laid_out(out)
    window = kernel_size, stride, padding, count_include_pad, divisor_override or 0

    def compute(part: slice) -> None:
        target[part] = 0
        run(source[part], target[part], *window)

    threads.in_pieces(compute, len(out), out.size)
    return out


@helper
def _span(place: int, size: int, kernel_size: int, stride: int, padding: int) -> tuple[int, int, int]:
    """A window along one axis: begin and end inside the image, and its length with padding."""
    begin = place * stride - padding
    end = min(begin + kernel_size, size + padding)
    return max(begin, 0), min(end, size), end - begin


@helper
def _divisor(high: int, wide: int, padded: int, include_padding: bool, override: int) -> int:
    if override != 0:
        return override
    return padded if include_padding else high * wide


@helper
def _add_line(source: Read1, start: int, step: int, out: Write1, to: int, to_step: int, count: int) -> None:
    """``out[to :: to_step] += source[start :: step]`` for ``count`` elements."""
    for k in range(count):
        out[to + k * to_step] += source[start + k * step]


@kernel
def _avg_pool_channels_last(
    image: Read4, out: Write4, kernel_size: Pair, stride: Pair, padding: Pair, include_padding: bool, override: int
) -> None:
    batch, height, width, channels = image.shape
    source, target = flat(image), flat(out)
    to = np.int64(0)  # a literal would be a type of its own, for which helpers are compiled again
    for n in range(batch):
        for row in range(out.shape[1]):
            top, bottom, tall = _span(row, height, kernel_size[0], stride[0], padding[0])
            for column in range(out.shape[2]):
                left, right, broad = _span(column, width, kernel_size[1], stride[1], padding[1])
                divisor = real(_divisor(bottom - top, right - left, tall * broad, include_padding, override))
                for c in range(channels):
                    out[n, row, column, c] = real(0.0)
                for h in range(top, bottom):
                    for w in range(left, right):
                        _add_line(source, ((n * height + h) * width + w) * channels, 1, target, to, 1, channels)
                for c in range(channels):
                    out[n, row, column, c] /= divisor
                to += channels


@kernel
def _avg_pool_planes(
    image: Read3, out: Write3, kernel_size: Pair, stride: Pair, padding: Pair, include_padding: bool, override: int
) -> None:
    planes, height, width = image.shape
    columns = out.shape[2]
    source, target = flat(image), flat(out)
    for plane in range(planes):
        for row in range(out.shape[1]):
            to = (plane * out.shape[1] + row) * columns
            top, bottom, tall = _span(row, height, kernel_size[0], stride[0], padding[0])
            for column in range(columns):
                out[plane, row, column] = real(0.0)
            for h in range(top, bottom):
                for j in range(kernel_size[1]):
                    offset = j - padding[1]
                    first, last = valid_columns(columns, width, offset, stride[1])
                    start = (plane * height + h) * width + first * stride[1] + offset
                    if stride[1] == 1:
                        _add_line(source, start, 1, target, to + first, 1, last - first)
                    elif stride[1] == 2:
                        _add_line(source, start, 2, target, to + first, 1, last - first)
                    else:
                        _add_line(source, start, stride[1], target, to + first, 1, last - first)
            for column in range(columns):
                left, right, broad = _span(column, width, kernel_size[1], stride[1], padding[1])
                out[plane, row, column] /= real(
                    _divisor(bottom - top, right - left, tall * broad, include_padding, override)
                )


@kernel
def _avg_pool_channels_last_backward(
    gradient: Read4, out: Write4, kernel_size: Pair, stride: Pair, padding: Pair, include_padding: bool, override: int
) -> None:
    batch, height, width, channels = out.shape
    target = flat(out)
    shares = np.empty(channels, gradient.dtype)
    for n in range(batch):
        for row in range(gradient.shape[1]):
            top, bottom, tall = _span(row, height, kernel_size[0], stride[0], padding[0])
            for column in range(gradient.shape[2]):
                left, right, broad = _span(column, width, kernel_size[1], stride[1], padding[1])
                divisor = real(_divisor(bottom - top, right - left, tall * broad, include_padding, override))
                for c in range(channels):
                    shares[c] = gradient[n, row, column, c] / divisor
                for h in range(top, bottom):
                    for w in range(left, right):
                        _add_line(shares, 0, 1, target, ((n * height + h) * width + w) * channels, 1, channels)


@kernel
def _avg_pool_planes_backward(
    gradient: Read3, out: Write3, kernel_size: Pair, stride: Pair, padding: Pair, include_padding: bool, override: int
) -> None:
    planes, height, width = out.shape
    columns = gradient.shape[2]
    target = flat(out)
    shares = np.empty(columns, gradient.dtype)
    for plane in range(planes):
        for row in range(gradient.shape[1]):
            top, bottom, tall = _span(row, height, kernel_size[0], stride[0], padding[0])
            for column in range(columns):
                left, right, broad = _span(column, width, kernel_size[1], stride[1], padding[1])
                shares[column] = gradient[plane, row, column] / real(
                    _divisor(bottom - top, right - left, tall * broad, include_padding, override)
                )
            for h in range(top, bottom):
                for j in range(kernel_size[1]):
                    first, last = valid_columns(columns, width, j - padding[1], stride[1])
                    to = (plane * height + h) * width + first * stride[1] + j - padding[1]
                    _add_line(shares, first, 1, target, to, stride[1], last - first)
