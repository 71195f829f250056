"""Max and average pooling over two dimensions, forward and backward, for channels-last and for contiguous images.

Channels-last images are (N, H, W, C), contiguous ones (P, H, W) with P = N * C planes; both C-contiguous, float32 or
float64. The caller chooses the output size (that is where ``ceil_mode`` lives); every window must overlap the image.
Pairs are (height, width). Padding is never part of a maximum. Indices are int32 positions ``h * W + w`` in the input
plane; a window that contains NaN yields NaN and the last NaN's position, as in PyTorch. Source:
torch.nn.functional.max_pool2d, avg_pool2d (aten MaxPoolKernel.cpp, AvgPoolKernel.cpp).
"""

from typing import Any

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import (
    Pair,
    Read1,
    Read3,
    Read4,
    ReadInt32,
    Write1,
    Write2,
    Write3,
    Write4,
    WriteInt32,
    flat,
    real,
)
from engine.kernels.windows import valid_columns
from engine.sharing import threads

Array = np.ndarray


def max_pool2d_forward(
    image: Array, output_size: Pair, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)
) -> tuple[Array, Array]:
    """Maxima and their int32 positions: (N, OH, OW, C) for a 4-D image (channels-last), (P, OH, OW) for a 3-D one."""
    shape = (image.shape[0], *output_size, *image.shape[3:])
    out, indices = np.empty(shape, image.dtype), np.empty(shape, np.int32)
    window: tuple[Any, ...] = (kernel_size, stride, padding, dilation)
    run = _max_pool_planes if _is_planes(image) else _max_pool_channels_last
    padded = None
    if _is_planes(image) and dilation == (1, 1) and (kernel_size, stride) in _COMMON:
        run, window = _max_pool_planes_common, (kernel_size[0], stride[0], padding)
        # What windows reach into: of a plane, and of one with padding, into which planes are copied where that is more.
        sizes = zip(image.shape[1:3], output_size, padding, strict=True)
        reach = [max(size + pad, (out - 1) * stride[0] + kernel_size[0]) for size, out, pad in sizes]
        inside = padding == (0, 0) and reach == [*image.shape[1:3]]
        padded = np.full((0, 0) if inside else reach, -np.inf, image.dtype)
    source, target, function = _laid_out(image), _laid_out(out), run[image.dtype.char]

    def compute(part: slice) -> None:
        more = () if padded is None else (padded.copy(),)
        function(source[part], target[part], indices[part].reshape(-1), *window, *more)

    threads.in_pieces(compute, len(image), image.size)
    return out, indices


def max_pool2d_backward(
    gradient: Array, indices: Array, image_shape: tuple[int, ...], out: Array | None = None
) -> Array:
    """Gradient of the image from that of the maxima, both laid out as in :func:`max_pool2d_forward`."""
    out = np.empty(image_shape, gradient.dtype) if out is None else out
    run = (_max_pool_planes_backward if _is_planes(gradient) else _max_pool_channels_last_backward)[gradient.dtype.char]
    source, target, places = _laid_out(gradient), _laid_out(out), indices.reshape(gradient.shape)

    def compute(part: slice) -> None:
        target[part] = 0
        run(source[part], places[part].reshape(-1), target[part])

    threads.in_pieces(compute, len(out), out.size)
    return out


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
    run = (_avg_pool_planes if _is_planes(image) else _avg_pool_channels_last)[image.dtype.char]
    source, target = _laid_out(image), _laid_out(out)
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
    run = (_avg_pool_planes_backward if _is_planes(gradient) else _avg_pool_channels_last_backward)[gradient.dtype.char]
    source, target = _laid_out(gradient), _laid_out(out)
    window = kernel_size, stride, padding, count_include_pad, divisor_override or 0

    def compute(part: slice) -> None:
        target[part] = 0
        run(source[part], target[part], *window)

    threads.in_pieces(compute, len(out), out.size)
    return out


def _is_planes(image: Array) -> bool:
    """Whether the lines to work along are those of the image: one channel is the same memory in both layouts."""
    return image.ndim == 3 or image.shape[3] == 1


def _laid_out(image: Array) -> Array:
    return image.reshape(image.shape[:3]) if image.ndim == 4 and image.shape[3] == 1 else image


@helper
def _keep_larger(
    source: Read1,
    start: int,
    step: int,
    out: Write1,
    places: WriteInt32,
    to: int,
    place: int,
    place_step: int,
    count: int,
) -> None:
    """Elements ``start, start + step, ...`` of source replace those of out that are smaller, and note their places."""
    for k in range(count):
        value, best, held = source[start + k * step], out[to + k], places[to + k]
        better = value > best or value != value
        out[to + k] = value if better else best
        places[to + k] = np.int32(np.int32(place) + np.int32(k) * np.int32(place_step)) if better else held


@kernel
def _max_pool_channels_last(
    image: Read4, out: Write4, places: WriteInt32, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    batch, height, width, channels = image.shape
    source, target = flat(image), flat(out)
    to = np.int64(0)  # a literal would be a type of its own, for which helpers are compiled again
    for n in range(batch):
        for row in range(out.shape[1]):
            for column in range(out.shape[2]):
                first = True
                for i in range(kernel_size[0]):
                    h = row * stride[0] - padding[0] + i * dilation[0]
                    if h < 0 or h >= height:
                        continue
                    for j in range(kernel_size[1]):
                        w = column * stride[1] - padding[1] + j * dilation[1]
                        if w < 0 or w >= width:
                            continue
                        start = ((n * height + h) * width + w) * channels
                        if first:
                            first = False
                            for c in range(channels):
                                target[to + c] = source[start + c]
                                places[to + c] = np.int32(h * width + w)
                        else:
                            _keep_larger(source, start, 1, target, places, to, h * width + w, 0, channels)
                to += channels


@kernel
def _max_pool_planes(
    image: Read3, out: Write3, places: WriteInt32, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> None:
    planes, height, width = image.shape
    columns = out.shape[2]
    source, target = flat(image), flat(out)
    for plane in range(planes):
        for row in range(out.shape[1]):
            to = (plane * out.shape[1] + row) * columns
            top = row * stride[0] - padding[0]
            while top < 0:
                top += dilation[0]
            for column in range(columns):
                left = column * stride[1] - padding[1]
                while left < 0:
                    left += dilation[1]
                out[plane, row, column] = -np.inf
                places[to + column] = top * width + left
            for i in range(kernel_size[0]):
                h = row * stride[0] - padding[0] + i * dilation[0]
                if h < 0 or h >= height:
                    continue
                for j in range(kernel_size[1]):
                    offset = j * dilation[1] - padding[1]
                    first, last = valid_columns(columns, width, offset, stride[1])
                    w = first * stride[1] + offset
                    start, place = (plane * height + h) * width + w, h * width + w
                    # A constant step lets LLVM vectorise the line.
                    if stride[1] == 1:
                        _keep_larger(source, start, 1, target, places, to + first, place, 1, last - first)
                    elif stride[1] == 2:
                        _keep_larger(source, start, 2, target, places, to + first, place, 2, last - first)
                    else:
                        _keep_larger(
                            source, start, stride[1], target, places, to + first, place, stride[1], last - first
                        )


_COMMON = {((2, 2), (2, 2)), ((3, 3), (2, 2)), ((3, 3), (1, 1))}
"""Windows with their strides that `_max_pool_planes_common` has: one loop over a line of outputs, where the general
kernel has one for each element of the window. 32 images of 64 planes of 31x31, 3x3 and stride 2, in ms, AVX-512 and
AVX2: 15 to 4.5 and 16 to 11; 8 of 64 of 112x112 8.2 to 3.7 and 8.5 to 4.5; 8 of 192 of 28x28, stride 1, 8.9 to 3.2 and
9.0 to 5.5; 64 of 32 of 28x28, 2x2 and stride 2, 3.4 to 0.6 (AVX-512)."""


@helper
def _maxima_of_line(
    source: Read1,
    start: int,
    pitch: int,
    window: int,
    stride: int,
    out: Write1,
    places: WriteInt32,
    to: int,
    place: int,
    width: int,
    above: int,
    before: int,
    count: int,
) -> None:
    """The maxima of so many windows beside each other, the first of which begins at `start`, `place` in the plane.

    pitch: from a row of source to the next; width: the same in the plane. above, before: the first window's rows and
    columns of padding. With window and stride as constants LLVM unrolls the inner loops and vectorises the outer.
    Places are int32 in each step: Numba's sum of two is an int64, of which a vector holds half as many.
    """
    for k in range(count):
        column = np.int32(np.int32(stride) * np.int32(k))
        best, chosen = source[start + stride * k], np.int32(0)
        if above > 0 or before > 0:
            best = real(-np.inf)
            chosen = np.int32(np.int32(above * width) + max(np.int32(np.int32(before) - column), np.int32(0)))
        for i in range(window):
            for j in range(window):
                value = source[start + i * pitch + stride * k + j]
                better = value > best or value != value
                best = value if better else best
                chosen = np.int32(i * width + j) if better else chosen
        out[to + k] = best
        places[to + k] = np.int32(place) + column + chosen


@kernel
def _max_pool_planes_common(
    image: Read3, out: Write3, places: WriteInt32, window: int, stride: int, padding: Pair, padded: Write2
) -> None:
    planes, height, width = image.shape
    rows, columns = out.shape[1], out.shape[2]
    target, whole, inner = flat(out), flat(image), flat(padded)
    up, left = padding
    for plane in range(planes):
        source, pitch, base = whole, width, plane * height * width
        if inner.size > 0:
            for row in range(height):
                at, to = base + row * width, (row + up) * padded.shape[1] + left
                for column in range(width):
                    inner[to + column] = whole[at + column]
            source, pitch, base = inner, padded.shape[1], 0
        for row in range(rows):
            start = base + row * stride * pitch
            to = (plane * rows + row) * columns
            top = row * stride - up
            place, above = top * width - left, max(-top, 0)
            if window == 2:
                _maxima_of_line(source, start, pitch, 2, 2, target, places, to, place, width, above, left, columns)
            elif stride == 2:
                _maxima_of_line(source, start, pitch, 3, 2, target, places, to, place, width, above, left, columns)
            else:
                _maxima_of_line(source, start, pitch, 3, 1, target, places, to, place, width, above, left, columns)


@kernel
def _max_pool_channels_last_backward(gradient: Read4, places: ReadInt32, out: Write4) -> None:
    batch, rows, columns, channels = gradient.shape
    source, target = flat(gradient), flat(out)
    image_size = out.shape[1] * out.shape[2] * channels
    for n in range(batch):
        for pixel in range(n * rows * columns, (n + 1) * rows * columns):
            at, to = pixel * channels, n * image_size
            for c in range(channels):
                target[to + places[at + c] * channels + c] += source[at + c]


@kernel
def _max_pool_planes_backward(gradient: Read3, places: ReadInt32, out: Write3) -> None:
    planes, rows, columns = gradient.shape
    source, target = flat(gradient), flat(out)
    for plane in range(planes):
        for at in range(plane * rows * columns, (plane + 1) * rows * columns):
            target[plane * out.shape[1] * out.shape[2] + places[at]] += source[at]


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
