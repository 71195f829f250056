"""Winograd's minimal filtering F(2x2, 3x3) on channels-last images: 16 products for a tile of four pixels, not 36.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). For each pair of channels, of an image's
tile d (4x4), a filter g (3x3) and an output's tile y (2x2):

    y = A' [(G g G') * (B' d B)] A

where * is element by element. Summed over channels, the middle is 16 matrix products.

Additions and products are in one order, so bits depend neither on the tiles taken together nor on the CPU.
"""

import numpy as np

from engine.kernels.bases import FILTER, IMAGE, PRODUCTS
from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, ReadInt64, Write1, address, change_basis, multiply_tile
from engine.kernels.tiling import tiles
from engine.kernels.vectors import tile_prices
from engine.ops.conv.kernels.correlate import add_bias
from engine.ops.conv.kernels.packing import block_of, lanes

Array = np.ndarray

_POINTS = 16
_APART = 32  # elements between the arrays of two points, so that they are not in the same sets of a cache

# Of what is multiplied at a time, in the second-level cache; but so many tiles that weights are read for a good reason.
_TOGETHER_BYTES = 1 << 19
_FEWEST, _MOST = 56, 256


def _together(channels: int, outputs: int, item: int) -> int:
    """How many tiles are taken through the products at a time."""
    return min(max(_TOGETHER_BYTES // (_POINTS * (channels + outputs) * item), _FEWEST), _MOST)


def widen(packed: Array) -> Array:
    """Filters in the basis of the products, (points, blocks, channels, two vectors), of packed ones."""
    blocks, channels, two = packed.shape[1], packed.shape[-2], packed.shape[-1]
    wide = np.empty((_POINTS, blocks, channels, two), packed.dtype)
    numbers = np.array([blocks, channels * two, lanes(packed.dtype), packed.itemsize], np.int64)
    _widen[packed.dtype.char](packed.reshape(-1), wide.reshape(-1), numbers)
    return wide


def correlate(image: Array, weights: Array, bias: Array | None, out: Array, dilation: tuple[int, ...]) -> None:
    """``out`` (N, 1, H, W, O) from ``image`` (N, 1, H' + 2 dh, W' + 2 dw, C), both C-contiguous; weights of `widen`.

    H' and W' are the next multiples of twice the dilation (dh, dw): the pixels of a tile are as far apart as those of a
    window.
    """
    _, blocks, channels, two = weights.shape
    batch, _, height, width, outputs = out.shape
    rows, columns = (-(-extent // (2 * gap)) * gap for extent, gap in zip((height, width), dilation, strict=True))
    every, vector = batch * rows * columns, lanes(out.dtype)
    many = min(_together(channels, blocks * two, out.itemsize), every)
    numbers = [batch, rows, columns, image[0].size, image.shape[3] * channels, channels, outputs, blocks]
    numbers += [height, width, many, vector, out.itemsize, *dilation]
    lines = [tiles(count, False, tile_prices(v)).reshape(-1) for count in (many, every % many) for v in (1, 2)]
    _correlate[out.dtype.char](
        image.reshape(-1),
        weights.reshape(-1),
        np.empty(0, out.dtype) if bias is None else bias,
        out.reshape(-1),
        np.empty(_POINTS * (many * channels + _APART), out.dtype),
        np.empty(_POINTS * (many * blocks * two + _APART), out.dtype),
        np.empty(4 * vector, out.dtype),
        np.array(numbers, np.int64),
        *lines,
    )


@kernel
def _widen(packed: Read1, wide: Write1, numbers: ReadInt64) -> None:
    blocks, run, vector, item = numbers[0], numbers[1], numbers[2], numbers[3]
    for block in range(blocks):
        source = address(packed) + block * 9 * run * item
        target = address(wide) + block * run * item
        for at in range(0, run * item, vector * item):
            change_basis(FILTER, wide, source + at, 3 * run, run, target + at, 4 * blocks * run, blocks * run)


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
    n, i, j = first // (rows * columns), first // columns % rows, first % columns
    for t in range(count):
        row, column = _pixel(i, gap_h), _pixel(j, gap_w)
        source = image + (n * image_size + row * image_row + column * channels) * item
        goal = target + t * channels * item
        for c in range(0, channels, vector):
            at = min(c, channels - vector) * item
            change_basis(IMAGE, like, source + at, gap_h * image_row, gap_w * channels, goal + at, 4 * step, step)
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
    two, every = 2 * vector, batch * rows * columns
    out_row, out_column = gap_h * width * outputs, gap_w * outputs  # from one pixel of a tile to the next
    spread_at, products_at = address(spread), address(products)
    spread_step, products_step = many * channels + _APART, blocks * many * two + _APART
    for first in range(0, every, many):
        count = min(many, every - first)
        _spread(out, address(image), first, count, numbers, spread_at, spread_step)
        for number in range(_POINTS * blocks):
            point, block = number // blocks, number % blocks
            _, _, across = block_of(block, outputs, vector)
            wide = across > vector
            line = broad if wide else narrow
            if count < many:
                line = last_broad if wide else last_narrow
            b = address(weights) + number * channels * two * item
            for t in range(line.size // 2):
                at, high = line[t], line[line.size // 2 + t]
                a = spread_at + (point * spread_step + at * channels) * item
                to = products_at + (point * products_step + (block * many + at) * two) * item
                multiply_tile(high, wide, out, to, two, False, a, channels, (0, 0, 1), b, (0, 0, two), (1, 1, channels))
        n, i, j = first // (rows * columns), first // columns % rows, first % columns
        for t in range(count):
            h, w = _pixel(i, gap_h), _pixel(j, gap_w)
            goal = ((n * height + h) * width + w) * outputs
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
                    change_basis(PRODUCTS, out, source, 4 * products_step, products_step, target, row, step)
                    if not whole:
                        for pixel in range(4):
                            r, s = pixel // 2, pixel % 2
                            if h + r * gap_h < height and w + s * gap_w < width:
                                for x in range(vector):
                                    out[place + r * out_row + s * out_column + x] = corner[pixel * vector + x]
            n, i, j = _next_tile(n, i, j, rows, columns)
    if bias.size > 0:
        add_bias(out, bias, (batch, 1, height, width), (height * width * outputs, 0, width * outputs, outputs), 0)
