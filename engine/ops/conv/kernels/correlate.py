"""Direct convolution on channels-last images: tiles of pixels and output channels that stay in vector registers.

Images are (N, D, H, W, C) with zeros around them where windows reach out (two-dimensional ones have D = 1); weights are
packed as (groups, window, channels of a group, outputs of a group), the outputs filled up to whole vectors. No column
matrix is made. Every result is one chain of fused multiply-adds in the order of the window: its bits depend neither on
the tiles nor on the CPU.

One thread, GFLOP/s forward, 3x3: 16 images of 28x28, 64 to 64 channels, 240; columns and OpenBLAS 92 (AVX2 kernels) or
150 (AVX-512); PyTorch 2.13 186.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, ReadInt64, Write1, address, array_at, multiply_tile
from engine.kernels.tiling import tiles
from engine.kernels.vectors import tile_prices, vector_bytes
from engine.ops.conv.kernels.packing import block_of, copy_eight, lanes

Array = np.ndarray
Three = tuple[int, int, int]
Shape = tuple[int, ...]

# Of a gradient at a time: the first-level cache holds a block's channels of them and those of the image.
_BAND_PIXELS = 256
# Weights of a block of outputs: up to here all of them are used for one tile after the other, beyond a piece of them
# for all tiles. 8 images of 7x7, 3x3, 512 to 512 channels: 37 ms without pieces, 17 with.
_PANEL_BYTES, _PIECE_BYTES = 1 << 18, 1 << 15


class Walk(NamedTuple):
    """Which output pixels are computed, and how windows move over an image (N, D, H, W, C) with them; offsets and steps
    count elements, those of pixels in the output (N, D, H, W, C).
    """

    size: Three
    """Pixels along each axis."""
    first: int
    """Offset within an image of the window of the first one."""
    steps: Three
    """From the window of a pixel to that of the next one,"""
    gaps: Three
    """and from an element of a window to the next one."""
    out_first: int
    """Offset of the first pixel within an image of the output."""
    out_steps: Three
    """From a pixel there to the next one."""


def correlate(image: Array, walk: Walk, weights: Array, bias: Array | None, out: Array) -> None:
    """Each output pixel of the walk becomes the sum over its window."""
    numbers, line, wide_line, room = _correlation(image.shape, walk, weights.shape, out.shape, image.dtype)
    _correlate[image.dtype.char](
        image.reshape(-1),
        weights.reshape(-1),
        np.empty(0, image.dtype) if bias is None else bias,
        out.reshape(-1),
        np.empty(room, out.dtype),
        numbers,
        line,
        wide_line,
    )


@lru_cache(4096)
def _correlation(
    image: Shape, walk: Walk, weights: Shape, out: Shape, dtype: np.dtype
) -> tuple[Array, Array, Array, int]:
    """What the kernel gets besides arrays: numbers, and tiles of one vector and of two; and the size of a tile."""
    size, gaps = walk.size, walk.gaps
    groups, blocks, kd, kh, kw, channels, two = weights
    if groups == 1 and gaps[2] == image[4]:  # a row of the window is one run of memory
        counts = [kd, kh, kw * channels]
        a_steps = [gaps[0], gaps[1], 1]
        b_steps = [kh * kw * channels * two, kw * channels * two, two]
    else:
        assert kd == 1, "groups and gaps along the last axis are for two dimensions"
        counts = [kh, kw, channels]
        a_steps = [gaps[1], gaps[2], 1]
        b_steps = [kw * channels * two, channels * two, two]
    numbers = [image[0], *size, groups, blocks, out[4] // groups, channels]
    numbers += [prod(image[1:]), walk.first, *walk.steps]
    numbers += [prod(out[1:]), walk.out_first, *walk.out_steps]
    numbers += [prod(weights[2:]), *counts, *a_steps, *b_steps, lanes(dtype), dtype.itemsize]
    in_pieces = prod(weights[2:]) * dtype.itemsize > _PANEL_BYTES
    numbers.append(max(_PIECE_BYTES // (2 * vector_bytes()), 1) if in_pieces else 0)
    lines = [tiles(size[2], not in_pieces, tile_prices(vectors)).reshape(-1) for vectors in (1, 2)]
    return np.array(numbers, np.int64), lines[0], lines[1], 14 * two


def weight_sums(
    image: Array, image_steps: Three, window_steps: Three, gradient: Array, total: Array, some: slice
) -> None:
    """Adds to ``total``, laid out as `engine.ops.conv.kernels.packing` does, the sums over all output pixels of image
    times gradient.

    ``gradient`` is (N, D, H, W, groups * outputs), and what lies behind it up to a vector's end may be read. ``some``
    are the blocks that are summed, counted through all groups.
    """
    numbers, line, wide_line, room = _summation(
        image.shape, image_steps, window_steps, gradient.shape, total.shape, some.start, some.stop, image.dtype
    )
    _weight_sums[image.dtype.char](
        image.reshape(-1),
        gradient.reshape(-1),
        total.reshape(-1),
        np.empty(room, total.dtype),
        numbers,
        line,
        wide_line,
    )


@lru_cache(4096)
def _summation(
    image: Shape,
    image_steps: Three,
    window_steps: Three,
    gradient: Shape,
    total: Shape,
    start: int,
    stop: int,
    dtype: np.dtype,
) -> tuple[Array, Array, Array, int]:
    """What the kernel gets besides arrays: numbers, and tiles of one vector and of two; and the size of a panel."""
    groups, blocks, kd, kh, kw, channels, two = total
    batch, depth, height, width, outputs = gradient
    image_size, gradient_size = prod(image[1:]), prod(gradient[1:])
    if depth == kd == 1:  # images one behind the other are the planes of one
        image_steps = (image_size, *image_steps[1:])
        batch, depth = 1, batch
    joined = groups == 1 and window_steps[2] == image[4]
    window = (kd, kh, 1) if joined else (kd, kh, kw)
    run = kw * channels if joined else channels
    band_d = min(max(_BAND_PIXELS // (height * width), 1), depth)
    band_h = min(max(_BAND_PIXELS // width, 1), height)
    numbers = [batch, image_size, gradient_size, depth, height, width, outputs, *image_steps]
    numbers += [blocks, outputs // groups, *window, *window_steps, run, channels, lanes(dtype), dtype.itemsize]
    numbers += [band_d, band_h, start, stop]
    lines = [tiles(run, False, tile_prices(vectors)).reshape(-1) for vectors in (1, 2)]
    return np.array(numbers, np.int64), lines[0], lines[1], band_d * band_h * width * two


@helper
def add_bias(out: Write1, bias: Read1, size: tuple[int, ...], steps: tuple[int, ...], first: int) -> None:
    """Adds a number a channel to every pixel."""
    for line in range(size[0] * size[1] * size[2]):
        n, rest = line // (size[1] * size[2]), line % (size[1] * size[2])
        goal = first + n * steps[0] + rest // size[2] * steps[1] + rest % size[2] * steps[2]
        for w in range(size[3]):
            pixel = array_at(address(out), goal + w * steps[3], bias.size, out)
            for k in range(bias.size):
                pixel[k] += bias[k]


@kernel
def _correlate(
    image: Read1,
    weights: Read1,
    bias: Read1,
    out: Write1,
    scratch: Write1,
    numbers: ReadInt64,
    narrow: ReadInt64,
    broad: ReadInt64,
) -> None:
    batch, depth, height, width = numbers[0], numbers[1], numbers[2], numbers[3]
    groups, blocks, outputs, channels = numbers[4], numbers[5], numbers[6], numbers[7]
    image_size, first = numbers[8], numbers[9]
    step_d, step_h, step_w = numbers[10], numbers[11], numbers[12]
    out_size, out_first = numbers[13], numbers[14]
    out_d, out_h, out_w = numbers[15], numbers[16], numbers[17]
    weights_size = numbers[18]
    counts = (numbers[19], numbers[20], numbers[21])
    a_steps = (numbers[22], numbers[23], numbers[24])
    b_steps = (numbers[25], numbers[26], numbers[27])
    vector, item = numbers[28], numbers[29]
    image_at, weights_at, out_at = address(image), address(weights), address(out)
    scratch_at = address(scratch)
    run = counts[2]
    whole = numbers[30] == 0
    piece = run if whole else numbers[30]
    taps = 1 if whole else counts[0] * counts[1]
    inner = counts if whole else (1, 1, run)
    lines = batch * depth * height
    for number in range(groups * blocks):
        group = number // blocks
        block, here, across = block_of(number % blocks, outputs, vector)
        if here < across and (groups - group) * outputs - block >= across:
            here = across  # what is too much lies in the next groups, which come later
        wide = across > vector
        line = broad if wide else narrow
        for tap in range(taps):
            i, j = tap // counts[1], tap % counts[1]
            for begin in range(0, run, piece):
                add = tap + begin > 0
                inner = (inner[0], inner[1], min(piece, run - begin))
                b = number * weights_size + i * b_steps[0] + j * b_steps[1] + begin * b_steps[2]
                b = weights_at + b * item
                for line_number in range(lines):
                    n, rest = line_number // (depth * height), line_number % (depth * height)
                    d, h = rest // height, rest % height
                    start = n * image_size + first + d * step_d + h * step_h + group * channels
                    start += i * a_steps[0] + j * a_steps[1] + begin
                    goal = n * out_size + out_first + d * out_d + h * out_h + group * outputs + block
                    for t in range(line.size // 2):
                        at, rows = line[t], line[line.size // 2 + t]
                        a = image_at + (start + at * step_w) * item
                        to, to_step = out_at + (goal + at * out_w) * item, out_w
                        if here < across:  # by way of a whole tile
                            to, to_step = scratch_at, across
                            for r in range(rows if add else 0):
                                for k in range(here):
                                    scratch[r * across + k] = out[goal + (at + r) * out_w + k]
                        multiply_tile(rows, wide, out, to, to_step, add, a, step_w, a_steps, b, b_steps, inner)
                        if here < across:
                            for r in range(rows):
                                for k in range(here):
                                    out[goal + (at + r) * out_w + k] = scratch[r * across + k]
    if bias.size > 0:
        add_bias(out, bias, (batch, depth, height, width), (out_size, out_d, out_h, out_w), out_first)


@kernel
def _weight_sums(
    image: Read1,
    gradient: Read1,
    total: Write1,
    panel: Write1,
    numbers: ReadInt64,
    narrow: ReadInt64,
    broad: ReadInt64,
) -> None:
    batch, image_size, gradient_size = numbers[0], numbers[1], numbers[2]
    depth, height, width, all_outputs = numbers[3], numbers[4], numbers[5], numbers[6]
    step_d, step_h, step_w = numbers[7], numbers[8], numbers[9]
    blocks, outputs, window_d, window_h, window_w = numbers[10], numbers[11], numbers[12], numbers[13], numbers[14]
    along_d, along_h, along_w = numbers[15], numbers[16], numbers[17]
    run, channels, vector, item = numbers[18], numbers[19], numbers[20], numbers[21]
    band_d, band_h, first, last = numbers[22], numbers[23], numbers[24], numbers[25]
    taps, two = window_d * window_h * window_w, 2 * vector
    a_steps = (step_d, step_h, step_w)
    bands_h = (height + band_h - 1) // band_h
    bands = bands_h * ((depth + band_d - 1) // band_d)
    for number in range(first, last):
        group = number // blocks
        block, _, across = block_of(number % blocks, outputs, vector)
        wide = across > vector
        line = broad if wide else narrow
        b_steps = (band_h * width * across, width * across, across)
        for band in range(batch * bands):
            n = band // bands
            d, h = band % bands // bands_h * band_d, band % bands_h * band_h
            counts = (min(band_d, depth - d), min(band_h, height - h), width)
            image_start = n * image_size + d * step_d + h * step_h
            slopes = n * gradient_size + (d * height + h) * width * all_outputs + group * outputs + block
            for i in range(counts[0]):  # the block's gradients as one run of memory
                for j in range(counts[1] * width):
                    source = array_at(address(gradient), slopes + (i * height * width + j) * all_outputs, across, total)
                    place = array_at(address(panel), (i * band_h * width + j) * across, across, total)
                    if across < 8:
                        for k in range(across):
                            place[k] = source[k]
                    else:
                        for k in range(0, across, 8):
                            copy_eight(place[k:], source[k:])
            for tap in range(taps):
                i, j, k = tap // (window_h * window_w), tap // window_w % window_h, tap % window_w
                start = image_start + i * along_d + j * along_h + k * along_w + group * channels
                for t in range(line.size // 2):
                    at, rows = line[t], line[line.size // 2 + t]
                    a = address(image) + (start + at) * item
                    to = address(total) + ((number * taps + tap) * run + at) * two * item
                    b = address(panel)
                    multiply_tile(rows, wide, total, to, two, True, a, 1, a_steps, b, b_steps, counts)
