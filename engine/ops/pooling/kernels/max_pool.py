"""Max pooling over two dimensions, forward and backward, for channels-last images and for planes.

Layouts are those of `engine.ops.pooling.kernels.layout`, float32 or float64. The caller chooses the output size (that
is where ``ceil_mode`` lives); every window must overlap the image. Pairs are (height, width). Padding is never part of
a maximum. Places are int32 positions ``h * W + w`` in the input plane; a window that contains NaN yields NaN and the
last NaN's place, as in PyTorch. Source: torch.nn.functional.max_pool2d (aten MaxPoolKernel.cpp).

Maxima and places stay in vector registers while a window's elements pass: vectors of channels, or of the pixels of a
plane in the form of `engine.kernels.filling`.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod

import numpy as np

from engine.kernels.filling import fill, filled
from engine.kernels.jit import helper, kernel
from engine.kernels.language import (
    Pair,
    Read3,
    Read4,
    ReadInt32,
    ReadInt64,
    Write1,
    Write3,
    Write4,
    WriteInt32,
    address,
    flat,
    largest_run,
)
from engine.kernels.tiling import move_lines
from engine.kernels.vectors import MAXIMA, vector_bytes
from engine.ops.pooling.kernels.layout import is_planes, laid_out
from engine.sharing import threads

Array = np.ndarray
_MOST = max(MAXIMA)
# Pixels of the results that planes have together in one run, where each has fewer.
_TOGETHER = 256


def max_pool2d_forward(
    image: Array, output_size: Pair, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)
) -> tuple[Array, Array]:
    """Maxima and their int32 places: (N, OH, OW, C) for a 4-D image (channels-last), (P, OH, OW) for a 3-D one."""
    window = kernel_size, stride, padding, dilation
    if not is_planes(image) and image.shape[3] < vector_bytes() // image.itemsize:  # too few channels for a vector
        planes = np.ascontiguousarray(image.transpose(0, 3, 1, 2)).reshape(-1, *image.shape[1:3])
        shape = (len(image), image.shape[3], *output_size)
        found = max_pool2d_forward(planes, output_size, *window)
        best, places = (np.ascontiguousarray(one.reshape(shape).transpose(0, 2, 3, 1)) for one in found)
        return best, places
    shape = (len(image), *output_size, *image.shape[3:])
    best, places = np.empty(shape, image.dtype), np.empty(shape, np.int32)
    maxima = _maxima_of_planes if is_planes(image) else _maxima_of_pixels
    compute = maxima(laid_out(image), laid_out(best), places, *window)
    threads.in_pieces(compute, len(image), image.size)
    return best, places


def _maxima_of_planes(image: Array, best: Array, places: Array, *window: Pair) -> Callable[[slice], None]:
    run = _planes_forward[image.dtype.char]
    together = max(_TOGETHER // prod(best.shape[1:]), 1)

    def compute(part: slice) -> None:
        number = max(min(together, part.stop - part.start), 1)
        numbers = _filled(number, image.shape[1:], best.shape[1:], *window, image.dtype)
        run(image[part], best[part], places[part].reshape(-1), *numbers)

    return compute


def _maxima_of_pixels(image: Array, best: Array, places: Array, *window: Pair) -> Callable[[slice], None]:
    run, vector = _channels_last_forward[image.dtype.char], vector_bytes() // image.itemsize

    def compute(part: slice) -> None:
        run(image[part], best[part], places[part].reshape(-1), *window, vector)

    return compute


@lru_cache(64)  # each has eight bytes a pixel of a result
def _filled(
    number: int, size: Pair, out: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, dtype: np.dtype
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """What the kernel gets besides arrays: numbers of how so many planes are laid out for their windows, and of a run;
    what the elements of a window meet and how far they lie from its first one; and where windows begin and where the
    first of their elements is that lies in the plane.
    """
    filling, taps = filled((number, *size), (number, *out), (1, *kernel), (1, *stride), (0, *padding), (1, *dilation))
    vector, apart = vector_bytes() // dtype.itemsize, filling.height * filling.pitch
    vectors = -(-((number - 1) * apart + (out[0] - 1) * filling.pitch + out[1]) // vector)
    marks = np.arange(kernel[0])[:, None] * dilation[0] * size[1] + np.arange(kernel[1]) * dilation[1]
    axes = [np.arange(many) * step - pad for many, step, pad in zip(out, stride, padding, strict=True)]
    inside = [start + gap * np.maximum(-(start // gap), 0) for start, gap in zip(axes, dilation, strict=True)]
    begins, firsts = np.zeros((2, vectors * vector), np.int32)
    for target, (row, column) in ((begins, axes), (firsts, inside)):
        for plane, r in np.ndindex(number, out[0]):
            target[plane * apart + r * filling.pitch :][: out[1]] = row[r] * size[1] + column
    planes, rows, columns = number, *out
    if filling.pitch == columns:
        rows, columns = 1, rows * columns
        if apart == columns:
            planes, columns = 1, number * columns
    room = filling.room(1, dtype)
    numbers = np.array([number, planes, apart, rows, columns, filling.pitch, vectors, vector, room], np.int64)
    of_window = taps.places(filling, 1), marks.astype(np.int32).reshape(-1)
    return filling.numbers(dtype), numbers, *of_window, begins, firsts


def max_pool2d_backward(
    gradient: Array, places: Array, image_shape: tuple[int, ...], out: Array | None = None
) -> Array:
    """Gradient of the image from that of the maxima, both laid out as in :func:`max_pool2d_forward`."""
    out = np.empty(image_shape, gradient.dtype) if out is None else out
    run = (_planes_backward if is_planes(gradient) else _channels_last_backward)[gradient.dtype.char]
    source, target = laid_out(gradient), laid_out(out)
    places = places.reshape(gradient.shape)

    def compute(part: slice) -> None:
        run(source[part], places[part].reshape(-1), target[part])

    threads.in_pieces(compute, len(out), out.size)
    return out


@helper
def _largest(
    like: Write1,
    vectors: int,
    best: int,
    found: int,
    source: int,
    reads: ReadInt64,
    marks: ReadInt32,
    count: int,
    start: int,
    vector: int,
    item: int,
) -> None:
    """Maxima of so many vectors of windows from the addresses ``best`` on, and their marks from ``found`` on."""
    at, size = 0, _MOST
    while at < vectors:
        while size > vectors - at:
            size //= 2
        to = at * vector
        largest_run(
            size,
            like,
            best + to * item,
            found + to * 4,
            source + to * item,
            address(reads),
            address(marks),
            count,
            start,
        )
        at += size


@kernel
def _planes_forward(
    image: Read3,
    best: Write3,
    places: WriteInt32,
    filling: ReadInt64,
    numbers: ReadInt64,
    reads: ReadInt64,
    marks: ReadInt32,
    begins: ReadInt32,
    firsts: ReadInt32,
) -> None:
    all_planes, height, width = image.shape
    number, planes, apart, rows, columns = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    pitch, vectors, vector, item = numbers[5], numbers[6], numbers[7], best.itemsize
    room = np.empty(numbers[8], best.dtype)
    for k in range(room.size):
        room[k] = -np.inf
    line, found = np.empty(vectors * vector, best.dtype), np.empty(vectors * vector, np.int32)
    at, marked, size = address(line), address(found), best.shape[1] * best.shape[2]
    for begin in range(0, all_planes, number):
        plane = min(begin, all_planes - number)  # the last planes are some of those before them
        fill(room, address(image) + plane * height * width * item, address(room), filling)
        _largest(room, vectors, at, marked, address(room), reads, marks, marks.size, -1, vector, item)
        for k in range(found.size):
            mark = found[k]
            found[k] = firsts[k] if mark < 0 else np.int32(begins[k] + mark)
        for p in range(planes):
            to, start = plane * size + p * rows * columns, p * apart
            move_lines(1, room, address(best) + to * item, columns, at + start * item, pitch, rows, columns, item)
            move_lines(1, found, address(places) + to * 4, columns, marked + start * 4, pitch, rows, columns, 4)


@kernel
def _channels_last_forward(
    image: Read4,
    best: Write4,
    places: WriteInt32,
    kernel_size: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    vector: int,
) -> None:
    batch, height, width, channels = image.shape
    reads = np.empty(kernel_size[0] * kernel_size[1], np.int64)
    marks = np.empty(reads.size, np.int32)
    like, item = flat(best), best.itemsize
    source, target, found = address(image), address(best), address(places)
    vectors, left = channels // vector, channels % vector
    for _ in range(batch):
        for row in range(best.shape[1]):
            for column in range(best.shape[2]):
                count = 0
                for i in range(kernel_size[0]):
                    h = row * stride[0] - padding[0] + i * dilation[0]
                    for j in range(kernel_size[1]):
                        w = column * stride[1] - padding[1] + j * dilation[1]
                        if h >= 0 and h < height and w >= 0 and w < width:
                            reads[count] = (h * width + w) * channels
                            marks[count] = np.int32(h * width + w)
                            count += 1
                first = marks[0]
                _largest(like, vectors, target, found, source, reads, marks, count, first, vector, item)
                if left > 0:  # the last vector begins inside the one before it
                    to = channels - vector
                    at, marked, begin = target + to * item, found + to * 4, source + to * item
                    _largest(like, 1, at, marked, begin, reads, marks, count, first, vector, item)
                target += channels * item
                found += channels * 4
        source += height * width * channels * item


@kernel
def _channels_last_backward(gradient: Read4, places: ReadInt32, out: Write4) -> None:
    batch, rows, columns, channels = gradient.shape
    source, target = flat(gradient), flat(out)
    image_size = out.shape[1] * out.shape[2] * channels
    for n in range(batch):
        target[n * image_size : (n + 1) * image_size] = 0
        for pixel in range(n * rows * columns, (n + 1) * rows * columns):
            at, to = pixel * channels, n * image_size
            for c in range(channels):
                target[to + places[at + c] * channels + c] += source[at + c]


@kernel
def _planes_backward(gradient: Read3, places: ReadInt32, out: Write3) -> None:
    planes, rows, columns = gradient.shape
    source, target, size = flat(gradient), flat(out), out.shape[1] * out.shape[2]
    for plane in range(planes):
        target[plane * size : (plane + 1) * size] = 0  # here, where it stays in the cache for what is added
        for at in range(plane * rows * columns, (plane + 1) * rows * columns):
            target[plane * size + places[at]] += source[at]
