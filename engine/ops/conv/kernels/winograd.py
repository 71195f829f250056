"""Winograd's minimal filtering F(2x2, 3x3) and F(2x2, 2x2) on channels-last images: for a tile of four pixels 16
products and not 36 with 3x3 taps, 9 and not 16 with 2x2.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). For each pair of channels, of an image's
tile d (4x4), a filter g (3x3) and an output's tile y (2x2):

    y = A' [(G g G') * (B' d B)] A

where * is element by element. Summed over channels, the middle is 16 matrix products. A window of 4x4 that moves by 2
is four of 2x2 taps, one for each phase of rows and columns, whose products are summed as those of further channels.

Additions and products are in one order, so bits depend neither on the tiles taken together nor on the CPU.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from engine.kernels.bases import (
    FILTER_OF_THREE,
    FILTER_OF_TWO,
    IMAGE_OF_THREE,
    IMAGE_OF_TWO,
    PRODUCTS_OF_THREE,
    PRODUCTS_OF_TWO,
)
from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, ReadInt64, Write1, address, change_basis, multiply_tile
from engine.kernels.tiling import tiles
from engine.kernels.vectors import tile_prices
from engine.ops.conv.kernels.correlate import add_bias
from engine.ops.conv.kernels.packing import block_of, lanes

Array = np.ndarray
Pair = tuple[int, ...]
Shape = tuple[int, ...]

_APART = 32  # elements between the arrays of two points, so that they are not in the same sets of a cache

# Of what is multiplied at a time, in the second-level cache; but so many tiles that weights are read for a good reason.
_TOGETHER_BYTES = 1 << 19
_FEWEST, _MOST = 56, 256


class Grid(NamedTuple):
    """How the tiles of a part of the output lie, along rows and columns."""

    gap: Pair
    """From one pixel of a tile to the next, in pixels of this part: the dilation."""
    stride: int
    """Of the window."""
    first: Pair
    """Where the window of the first pixel begins in the image."""
    step: int
    """From one pixel of this part to the next, in pixels of the output,"""
    start: Pair
    """and the first one."""

    def extents(self, out: Pair) -> Pair:
        """Of this part, for an output of this size."""
        return tuple(-(-(extent - start) // self.step) for extent, start in zip(out, self.start, strict=True))


def _together(points: int, channels: int, outputs: int, item: int) -> int:
    """How many tiles are taken through the products at a time."""
    return min(max(_TOGETHER_BYTES // (points * (channels + outputs) * item), _FEWEST), _MOST)


def widen(packed: Array, stride: int) -> Array:
    """Filters in the basis of the products, (side, side, blocks, phases * channels, two vectors), of packed ones whose
    window moves by so much.
    """
    blocks, extent, channels, two = packed.shape[1], packed.shape[-3], packed.shape[-2], packed.shape[-1]
    taps = extent // stride
    wide = np.empty((taps + 1, taps + 1, blocks, stride * stride * channels, two), packed.dtype)
    numbers = np.array([blocks, channels * two, lanes(packed.dtype), packed.itemsize, taps, stride], np.int64)
    _widen[packed.dtype.char](packed.reshape(-1), wide.reshape(-1), numbers)
    return wide


def correlate(image: Array, weights: Array, bias: Array | None, out: Array, grid: Grid) -> None:
    """A part of ``out`` (N, 1, H, W, O) from ``image`` (N, 1, H', W', C), both C-contiguous; weights of `widen`.

    The image has all that whole tiles meet.
    """
    found = _correlation(image.shape, weights.shape, out.shape, grid, out.dtype)
    if found is None:
        return
    rooms, numbers, lines = found
    _correlate[out.dtype.char](
        image.reshape(-1),
        weights.reshape(-1),
        np.empty(0, out.dtype) if bias is None else bias,
        out.reshape(-1),
        *[np.empty(room, out.dtype) for room in rooms],
        numbers,
        *lines,
    )


@lru_cache(4096)
def _correlation(
    image: Shape, weights: Shape, out: Shape, grid: Grid, dtype: np.dtype
) -> tuple[tuple[int, int, int], Array, list[Array]] | None:
    """What the kernel gets besides arrays: the elements of tiles of images, of products and of an output; numbers; and
    tiles of those tiles. None where there is no such part: an output of one row has no odd ones.
    """
    side, _, blocks, depth, two = weights
    batch, _, height, width, outputs = out
    extents = grid.extents((height, width))
    rows, columns = (-(-extent // (2 * gap)) * gap for extent, gap in zip(extents, grid.gap, strict=True))
    every, vector, points = batch * rows * columns, lanes(dtype), side * side
    if not every:
        return None
    many = min(_together(points, depth, blocks * two, dtype.itemsize), every)
    channels = image[4]
    numbers = [batch, rows, columns, prod(image[1:]), image[3] * channels, channels, outputs, blocks]
    numbers += [*extents, many, vector, dtype.itemsize, *grid.gap, side, grid.stride, *grid.first]
    numbers += [grid.step, *grid.start, height, width]
    lines = [tiles(count, False, tile_prices(v)).reshape(-1) for count in (many, every % many) for v in (1, 2)]
    rooms = points * (many * depth + _APART), points * (many * blocks * two + _APART), 4 * vector
    return rooms, np.array(numbers, np.int64), lines


@kernel
def _widen(packed: Read1, wide: Write1, numbers: ReadInt64) -> None:
    blocks, run, vector, item, taps, stride = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    extent, phases = taps * stride, stride * stride
    step = blocks * phases * run  # from one point to the next
    for number in range(blocks * phases):
        block, row, column = number // phases, number // stride % stride, number % stride
        source = address(packed) + ((block * extent + row) * extent + column) * run * item
        target = address(wide) + number * run * item
        for at in range(0, run * item, vector * item):
            from_row, from_step, goal = stride * extent * run, stride * run, target + at
            if taps == 3:
                change_basis(FILTER_OF_THREE, wide, source + at, from_row, from_step, goal, 4 * step, step)
            else:
                change_basis(FILTER_OF_TWO, wide, source + at, from_row, from_step, goal, 3 * step, step)


@helper
def _next_tile(n: int, i: int, j: int, rows: int, columns: int) -> tuple[int, int, int]:
    """What comes after tile (i, j) of image n."""
    j += 1
    if j == columns:
        i, j = i + 1, 0
    if i == rows:
        n, i = n + 1, 0
    return n, i, j


@helper
def _pixel(tile: int, gap: int) -> int:
    """Along one axis, the first of the tile's two pixels, which are ``gap`` apart."""
    return tile // gap * 2 * gap + tile % gap


@helper
def _spread(like: Write1, image: int, first: int, count: int, numbers: ReadInt64, target: int, step: int) -> None:
    """The image's tiles from the first one on in the basis of the products, points ``step`` apart."""
    rows, columns, image_size, image_row, channels = numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    vector, item, gap_h, gap_w = numbers[11], numbers[12], numbers[13], numbers[14]
    side, stride, first_h, first_w = numbers[15], numbers[16], numbers[17], numbers[18]
    tap_row, tap = gap_h * stride * image_row, gap_w * stride * channels
    n, i, j = first // (rows * columns), first // columns % rows, first % columns
    for t in range(count):
        row, column = first_h + _pixel(i, gap_h) * stride, first_w + _pixel(j, gap_w) * stride
        for phase in range(stride * stride):
            h, w = row + phase // stride, column + phase % stride
            source = image + (n * image_size + h * image_row + w * channels) * item
            goal = target + (t * stride * stride + phase) * channels * item
            for c in range(0, channels, vector):
                at = min(c, channels - vector) * item
                if side == 4:
                    change_basis(IMAGE_OF_THREE, like, source + at, tap_row, tap, goal + at, 4 * step, step)
                else:
                    change_basis(IMAGE_OF_TWO, like, source + at, tap_row, tap, goal + at, 3 * step, step)
        n, i, j = _next_tile(n, i, j, rows, columns)


@kernel
def _correlate(
    image: Read1,
    weights: Read1,
    bias: Read1,
    out: Write1,
    spread: Write1,
    products: Write1,
    corner: Write1,
    numbers: ReadInt64,
    narrow: ReadInt64,
    broad: ReadInt64,
    last_narrow: ReadInt64,
    last_broad: ReadInt64,
) -> None:
    batch, rows, columns, channels, outputs = numbers[0], numbers[1], numbers[2], numbers[5], numbers[6]
    blocks, height, width = numbers[7], numbers[8], numbers[9]
    many, vector, item, gap_h, gap_w = numbers[10], numbers[11], numbers[12], numbers[13], numbers[14]
    side, stride, out_step, start_h, start_w = numbers[15], numbers[16], numbers[19], numbers[20], numbers[21]
    all_height, all_width = numbers[22], numbers[23]
    two, every, points, depth = 2 * vector, batch * rows * columns, side * side, stride * stride * channels
    # from one pixel of a tile to the next
    out_row, out_column = gap_h * out_step * all_width * outputs, gap_w * out_step * outputs
    spread_at, products_at = address(spread), address(products)
    spread_step, products_step = many * depth + _APART, blocks * many * two + _APART
    for first in range(0, every, many):
        count = min(many, every - first)
        _spread(out, address(image), first, count, numbers, spread_at, spread_step)
        for number in range(points * blocks):
            point, block = number // blocks, number % blocks
            _, _, across = block_of(block, outputs, vector)
            wide = across > vector
            line = broad if wide else narrow
            if count < many:
                line = last_broad if wide else last_narrow
            b = address(weights) + number * depth * two * item
            for t in range(line.size // 2):
                at, high = line[t], line[line.size // 2 + t]
                a = spread_at + (point * spread_step + at * depth) * item
                to = products_at + (point * products_step + (block * many + at) * two) * item
                multiply_tile(high, wide, out, to, two, False, a, depth, (0, 0, 1), b, (0, 0, two), (1, 1, depth))
        n, i, j = first // (rows * columns), first // columns % rows, first % columns
        for t in range(count):
            h, w = _pixel(i, gap_h), _pixel(j, gap_w)
            goal = ((n * all_height + start_h + h * out_step) * all_width + start_w + w * out_step) * outputs
            whole = h + gap_h < height and w + gap_w < width
            for block in range(blocks):
                start, here, _ = block_of(block, outputs, vector)
                for k in range(0, here, vector):
                    v = min(k, here - vector)
                    source = products_at + ((block * many + t) * two + v) * item
                    place = goal + start + v
                    if whole:
                        target, row, step = address(out) + place * item, out_row, out_column
                    else:
                        target, row, step = address(corner), two, vector
                    if side == 4:
                        change_basis(
                            PRODUCTS_OF_THREE, out, source, 4 * products_step, products_step, target, row, step
                        )
                    else:
                        change_basis(PRODUCTS_OF_TWO, out, source, 3 * products_step, products_step, target, row, step)
                    if not whole:
                        for pixel in range(4):
                            r, s = pixel // 2, pixel % 2
                            if h + r * gap_h < height and w + s * gap_w < width:
                                for x in range(vector):
                                    out[place + r * out_row + s * out_column + x] = corner[pixel * vector + x]
            n, i, j = _next_tile(n, i, j, rows, columns)
    if bias.size > 0:
        image_size = all_height * all_width * outputs
        add_bias(out, bias, (batch, 1, all_height, all_width), (image_size, 0, all_width * outputs, outputs), 0)
