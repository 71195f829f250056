"""Depthwise convolution, one filter a channel, on channels-last images: tiles of pixels and channels in registers.

Images are (N, D, H, W, C) as in `engine.ops.conv.kernels.correlate`, whose functions these stand for; filters are
packed as (window, C). A pixel's channels are vectors, and both factors of a product are such. Channels that fill no two
vectors are computed as if they did, so up to two vectors behind images, gradients and filters may be read.
"""

from functools import lru_cache
from math import prod

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read1, ReadInt64, Write1, address, multiply_each
from engine.kernels.tiling import tiles
from engine.kernels.vectors import each_prices
from engine.ops.conv.kernels.correlate import Walk, add_bias
from engine.ops.conv.kernels.packing import block_of, blocks, lanes

Array = np.ndarray
Three = tuple[int, int, int]
Shape = tuple[int, ...]

_BAND_PIXELS = 256  # of a gradient at a time, so that a block's channels of them stay in the first-level cache


def pack(weight: Array) -> Array:
    """(window, C), with room behind it, of (C, 1, kd, kh, kw)."""
    shape = (*weight.shape[2:], len(weight))
    packed = np.empty(weight.size + 2 * lanes(weight.dtype), weight.dtype)[: weight.size].reshape(shape)
    packed[...] = weight[:, 0].transpose(1, 2, 3, 0)
    return packed


def unpack(total: Array, weight: Array) -> None:
    """Fills (C, 1, kd, kh, kw) with the sums of `weight_sums`, (blocks, window, two vectors)."""
    channels, vector = len(weight), lanes(weight.dtype)
    for number, sums in enumerate(total):
        first = number * 2 * vector
        here = min(channels - first, 2 * vector)
        across = 2 * vector if here > vector else vector
        first = min(first, max(channels - across, 0))
        part = weight[first : first + across, 0]
        part[...] = sums[..., : len(part)].transpose(3, 0, 1, 2)


def correlate(image: Array, walk: Walk, filters: Array, bias: Array | None, out: Array) -> None:
    """See `engine.ops.conv.kernels.correlate.correlate`."""
    _correlate[image.dtype.char](
        image.reshape(-1),
        filters.reshape(-1),
        np.empty(0, image.dtype) if bias is None else bias,
        out.reshape(-1),
        *_correlation(image.shape, walk, filters.shape, out.shape, image.dtype),
    )


@lru_cache(1024)
def _correlation(image: Shape, walk: Walk, filters: Shape, out: Shape, dtype: np.dtype) -> tuple[Array, Array, Array]:
    """What the kernel gets besides arrays: numbers, tiles, and the places of a window."""
    depth, height, width, channels = filters
    numbers = [image[0], *walk.size, channels, prod(image[1:]), walk.first, *walk.steps]
    numbers += [prod(out[1:]), walk.out_first, *walk.out_steps, lanes(dtype), dtype.itemsize]
    steps = height * width * channels, width * channels, channels
    line = tiles(walk.size[2], True, each_prices()).reshape(-1)
    return np.array(numbers, np.int64), line, _pairs((depth, height, width), walk.gaps, steps)


def weight_sums(
    image: Array, image_steps: Three, window_steps: Three, gradient: Array, total: Array, some: slice
) -> None:
    """Adds to ``total`` (blocks of channels, window, two vectors) the sums of image times gradient (N, D, H, W, C) over
    all output pixels, for ``some`` of the blocks.
    """
    _weight_sums[image.dtype.char](
        image.reshape(-1),
        gradient.reshape(-1),
        total.reshape(-1),
        *_summation(
            image.shape, image_steps, window_steps, gradient.shape, total.shape, some.start, some.stop, image.dtype
        ),
    )


@lru_cache(1024)
def _summation(
    image: Shape,
    image_steps: Three,
    window_steps: Three,
    gradient: Shape,
    total: Shape,
    start: int,
    stop: int,
    dtype: np.dtype,
) -> tuple[Array, Array, Array]:
    """What the kernel gets besides arrays: numbers, tiles, and the places of a band."""
    _, *window, _ = total
    batch, depth, height, width, channels = gradient
    image_size, gradient_size = prod(image[1:]), prod(gradient[1:])
    if depth == window[0] == 1:  # images one behind the other are the planes of one
        image_steps = (image_size, *image_steps[1:])
        batch, depth = 1, batch
    numbers = [batch, image_size, gradient_size, depth, height, width, channels, *image_steps, *window, *window_steps]
    band_d, band_h = max(_BAND_PIXELS // (height * width), 1), max(_BAND_PIXELS // width, 1)
    band = min(band_d, depth), min(band_h, height)
    numbers += [lanes(dtype), dtype.itemsize, *band, start, stop]
    steps = height * width * channels, width * channels, channels
    line = tiles(window[2], False, each_prices()).reshape(-1)
    return np.array(numbers, np.int64), line, _pairs((*band, width), image_steps, steps)


def _pairs(size: Three, one: Three, other: Three) -> Array:
    """For every place below ``size``, in order, its offsets by either steps: what `multiply_each` reads."""
    places = np.indices(size).reshape(3, -1)
    return np.stack([np.array(one) @ places, np.array(other) @ places], 1).astype(np.int64).reshape(-1)


def total(channels: int, window: Three, dtype: np.dtype) -> Array:
    """Zeros for `weight_sums`."""
    return np.zeros((blocks(channels, dtype), *window, 2 * lanes(dtype)), dtype)


@kernel
def _correlate(
    image: Read1,
    filters: Read1,
    bias: Read1,
    out: Write1,
    numbers: ReadInt64,
    line: ReadInt64,
    pairs: ReadInt64,
) -> None:
    batch, depth, height, width, channels = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    image_size, first = numbers[5], numbers[6]
    step_d, step_h, step_w = numbers[7], numbers[8], numbers[9]
    out_size, out_first = numbers[10], numbers[11]
    out_d, out_h, out_w = numbers[12], numbers[13], numbers[14]
    vector, item = numbers[15], numbers[16]
    scratch = np.empty(7 * 2 * vector, out.dtype)
    number, taps = line.size // 2, pairs.size // 2
    for line_number in range(batch * depth * height):
        n, rest = line_number // (depth * height), line_number % (depth * height)
        d, h = rest // height, rest % height
        start = n * image_size + first + d * step_d + h * step_h
        goal = n * out_size + out_first + d * out_d + h * out_h
        for block in range((channels + 2 * vector - 1) // (2 * vector)):
            begin, here, across = block_of(block, channels, vector)
            b = address(filters) + begin * item
            for t in range(number):
                at, rows = line[t], line[number + t]
                a = address(image) + (start + at * step_w + begin) * item
                to, to_step = address(out) + (goal + at * out_w + begin) * item, out_w
                if here < across:  # by way of a whole tile
                    to, to_step = address(scratch), across
                multiply_each(rows, across > vector, out, to, to_step, False, a, step_w, b, address(pairs), taps)
                if here < across:
                    for r in range(rows):
                        for k in range(here):
                            out[goal + (at + r) * out_w + k] = scratch[r * across + k]
    if bias.size > 0:
        add_bias(out, bias, (batch, depth, height, width), (out_size, out_d, out_h, out_w), out_first)


@kernel
def _weight_sums(
    image: Read1, gradient: Read1, total: Write1, numbers: ReadInt64, line: ReadInt64, pairs: ReadInt64
) -> None:
    batch, image_size, gradient_size = numbers[0], numbers[1], numbers[2]
    depth, height, width, channels = numbers[3], numbers[4], numbers[5], numbers[6]
    step_d, step_h = numbers[7], numbers[8]
    window_d, window_h, window_w = numbers[10], numbers[11], numbers[12]
    along_d, along_h, along_w = numbers[13], numbers[14], numbers[15]
    vector, item = numbers[16], numbers[17]
    band_d, band_h, first_block, last_block = numbers[18], numbers[19], numbers[20], numbers[21]
    bands_h = (height + band_h - 1) // band_h
    bands = bands_h * ((depth + band_d - 1) // band_d)
    number, two = line.size // 2, 2 * vector
    for block in range(first_block, last_block):
        begin, _, across = block_of(block, channels, vector)
        wide = across > vector
        for band in range(batch * bands):
            n = band // bands
            d, h = band % bands // bands_h * band_d, band % bands_h * band_h
            # a last band has the first of the pairs: there are several planes in one only where they are whole
            count = min(band_d, depth - d) * min(band_h, height - h) * width
            start = n * image_size + d * step_d + h * step_h + begin
            b = address(gradient) + (n * gradient_size + (d * height + h) * width * channels + begin) * item
            for row in range(window_d * window_h):
                i, j = row // window_h, row % window_h
                for t in range(number):
                    at, rows = line[t], line[number + t]
                    a = address(image) + (start + i * along_d + j * along_h + at * along_w) * item
                    to = address(total) + ((block * window_d * window_h + row) * window_w + at) * two * item
                    multiply_each(rows, wide, total, to, two, True, a, along_w, b, address(pairs), count)
