"""Convolution in many small groups on row-major images: runs of pixels of one channel's plane in vector registers.

Images are (N, C, D, H, W), C-contiguous. A group's channels are copied into `Filling`'s form, with their padding and,
where windows move by more than one pixel, one plane for each remainder of a place by the stride. There the pixels that
meet an element of the window one after the other lie one after the other, from line to line as well, so a whole plane
is one run; what is computed between two lines is left out when the result is copied. Each copy stays in the cache, and
image and result are visited once.

Elements of a result are chains of fused multiply-adds in the order of the window, then of the channels, as in
`engine.ops.conv.kernels.correlate`: the same bits. Weights are summed in `engine.kernels.vectors.LINE` bytes for each,
image by image, and then across those.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import Read1, ReadInt64, Write1, add_products, address, array_at, correlate_run
from engine.kernels.tiling import move_line, tiles
from engine.kernels.vectors import LINE, product_prices, tile_prices
from engine.ops.conv.kernels.packing import lanes
from engine.sharing import threads

Array = np.ndarray
Three = tuple[int, int, int]


class Filling(NamedTuple):
    """How a channel's planes lie in the room of a group: (phases D, H, W), each (depth, height, pitch).

    Element (d, h, w) of phase (i, j, k) is the pixel (d, h, w) * stride + (i, j, k) - before of the channel, or 0 where
    there is none. Lines are ``width`` long; the zeros at the end of one may be those at the beginning of the next.
    """

    size: Three  # of the channel's planes
    stride: Three
    before: Three
    phases: Three
    depth: int
    height: int
    width: int
    pitch: int

    @property
    def volume(self) -> int:
        """Elements of a channel."""
        phases = self.phases
        return phases[0] * phases[1] * phases[2] * self.depth * self.height * self.pitch

    def room(self, channels: int, dtype: np.dtype) -> Array:
        """Zeros for so many channels; runs may be read to the end of a vector behind them."""
        return np.zeros(channels * self.volume + self.width + 2 * LINE // dtype.itemsize, dtype)

    def numbers(self, dtype: np.dtype) -> Array:
        extent = self.depth, self.height, self.width, self.pitch
        most = max(tile_prices(1))
        return np.array([*self.size, *self.stride, *self.before, *self.phases, *extent, dtype.itemsize, most], np.int64)


def filling(size: Three, stride: Three, before: Three, reach: Three, extent: Three, widest: int) -> Filling:
    """For windows that begin ``before`` the image and have this ``reach``, gaps included; phases have this ``extent``,
    and runs compute lines of ``widest`` pixels at most.
    """
    phases = min(stride[0], reach[0]), min(stride[1], reach[1]), min(stride[2], reach[2])
    width = extent[2]
    shared = min(before[2], width - before[2] - size[2], width - widest) if stride[2] == 1 else 0
    return Filling(size, stride, before, phases, *extent, width - max(shared, 0))


class Taps(NamedTuple):
    """The elements of a window, of the first one on, and the gaps between them."""

    number: Three
    gaps: Three
    first: Three = (0, 0, 0)

    def places(self, filling: Filling, channels: int) -> Array:
        """What they meet at the first output pixel, in the order of (window, channels): offsets in a group's room."""
        taps = np.array(self.first) + np.array(self.gaps) * np.moveaxis(np.indices(self.number), 0, -1)
        whole, phase = np.divmod(taps, filling.stride)
        number = (phase[..., 0] * filling.phases[1] + phase[..., 1]) * filling.phases[2] + phase[..., 2]
        rows = ((number * filling.depth + whole[..., 0]) * filling.height + whole[..., 1]) * filling.pitch
        places = rows + whole[..., 2]
        return (places.reshape(-1, 1) + filling.volume * np.arange(channels)).astype(np.int64).reshape(-1)


class Job(NamedTuple):
    """Output pixels (d, h, w) below ``size`` of every channel, ``steps`` apart from ``out_first`` on, and the window
    that meets the first of them.
    """

    size: Three
    out_first: int
    steps: Three
    taps: Taps


def correlate(
    image: Array, filling: Filling, jobs: tuple[Job, ...], filters: Sequence[Array], bias: Array | None, out: Array
) -> None:
    """Fills ``out`` (N, groups * outputs, d, h, w) from ``image`` (N, groups * channels, D, H, W) with each job's
    filters (groups, outputs of a group, window * channels).
    """
    dtype = image.dtype
    groups, outputs = filters[0].shape[:2]
    channels = image.shape[1] // groups
    numbers = _correlation(filling, jobs, groups, outputs, channels, prod(out.shape[2:]), dtype)
    run = _correlate[dtype.char]
    arrays = (
        filters[0].reshape(-1) if len(filters) == 1 else np.concatenate([each.reshape(-1) for each in filters]),
        np.empty(0, dtype) if bias is None else np.ascontiguousarray(bias),
        out.reshape(-1),
    )

    def compute(part: slice) -> None:
        run(image.reshape(-1), filling.room(channels, dtype), *arrays, *numbers, part.start, part.stop)

    threads.in_pieces(compute, len(image) * groups, image.size + out.size * (1 + len(numbers[3]) // 4))


@lru_cache(512)  # of up to 40 KiB
def _correlation(
    filling: Filling,
    jobs: tuple[Job, ...],
    groups: int,
    outputs: int,
    channels: int,
    out_size: int,
    dtype: np.dtype,
) -> tuple[Array, Array, Array, Array, Array]:
    """What the kernel gets besides arrays: of the filling, of all and of each job, the places, and the tiles."""
    vector = lanes(dtype)
    table: list[int] = []
    lines: list[Array] = []
    places: list[Array] = []
    read, taken, longest = 0, 0, 0
    for job in jobs:
        vectors = -(-((job.size[1] - 1) * filling.pitch + job.size[2]) // vector)
        full, line = _tiles(vectors)
        met = job.taps.places(filling, channels)
        before = sum(map(len, lines))
        table += [*job.size, job.out_first, *job.steps, read, taken, len(met), full, before, len(line) // 2]
        read, taken, longest = read + groups * outputs * len(met), taken + len(met), max(longest, vectors)
        lines.append(line)
        places.append(met)
    numbers = np.array([groups, outputs, channels, filling.volume, longest * vector, out_size, vector], np.int64)
    of_jobs = np.array(table, np.int64)
    return filling.numbers(dtype), numbers, of_jobs, np.concatenate(places), np.concatenate(lines)


def _tiles(vectors: int) -> tuple[int, Array]:
    """How many of the biggest tiles a run begins with, and starts and sizes of the others, counted from their end."""
    prices = tile_prices(1)
    full = max(vectors // max(prices) - 1, 0)
    return full, tiles(vectors - full * max(prices), True, prices).reshape(-1)


def weight_sums(image: Array, filling: Filling, taps: Taps, gradient: Array, groups: int) -> Array:
    """(groups, outputs, window * channels) of ``image`` (N, groups * channels, D, H, W) and ``gradient`` (N, groups *
    outputs, d, h, w): the sums over all pixels of the gradient times what the element of the window meets for each.
    """
    dtype, line = image.dtype, LINE // image.itemsize
    channels, outputs = image.shape[1] // groups, gradient.shape[1] // groups
    slopes, numbers = _summation(filling, taps, gradient.shape[2:], len(image), groups, outputs, channels, dtype)
    count = len(numbers[3])
    total = np.zeros((groups, outputs, count, line), dtype)
    run = _weight_sums[dtype.char]

    def compute(part: slice) -> None:
        rooms = filling.room(channels, dtype), slopes.room(1, dtype)
        arrays = image.reshape(-1), gradient.reshape(-1), *rooms, total.reshape(-1)
        run(*arrays, *numbers, part.start, part.stop)

    threads.in_pieces(compute, groups * outputs, image.size + gradient.size * (1 + count // 4))
    while line > 1:
        line //= 2
        total = total[..., :line] + total[..., line:]
    return total[..., 0]


@lru_cache(512)  # of up to 40 KiB
def _summation(
    filling: Filling,
    taps: Taps,
    size: Three,
    batch: int,
    groups: int,
    outputs: int,
    channels: int,
    dtype: np.dtype,
) -> tuple[Filling, tuple[Array, Array, Array, Array, Array]]:
    """How a gradient of this size lies, and what the kernel gets besides arrays: of both fillings and of all, the
    places, and the tiles.
    """
    line = LINE // dtype.itemsize
    # a run may be read to the end of a line of memory behind a plane, in zeros
    height = size[1] + -(-line // filling.pitch)
    slopes = Filling(size, (1, 1, 1), (0, 0, 0), (1, 1, 1), size[0], height, size[2], filling.pitch)
    places = taps.places(filling, channels)
    count = -(-((size[1] - 1) * filling.pitch + size[2]) // line)
    numbers = np.array([batch, groups, outputs, channels, filling.volume, len(places), line, count], np.int64)
    cut = tiles(len(places), False, product_prices()).reshape(-1)
    return slopes, (filling.numbers(dtype), slopes.numbers(dtype), numbers, places, cut)


@kernel
def _correlate(
    image: Read1,
    room: Write1,
    filters: Read1,
    bias: Read1,
    out: Write1,
    filling: ReadInt64,
    numbers: ReadInt64,
    jobs: ReadInt64,
    places: ReadInt64,
    lines: ReadInt64,
    first: int,
    last: int,
) -> None:
    groups, outputs, channels, volume = numbers[0], numbers[1], numbers[2], numbers[3]
    longest, out_size, vector = numbers[4], numbers[5], numbers[6]
    plane, height_of, pitch, item = filling[0] * filling[1] * filling[2], filling[13], filling[15], filling[16]
    most = filling[17]
    result = np.empty(longest, out.dtype)
    result_at, room_at = address(result), address(room)
    for number in range(first, last):
        for c in range(channels):
            source = address(image) + (number * channels + c) * plane * item
            _fill(out, source, room_at + c * volume * item, filling)
        for o in range(outputs):
            channel = number % groups * outputs + o
            goal = (number * outputs + o) * out_size
            for j in range(0, jobs.size, 13):
                depth, height, width, out_first = jobs[j], jobs[j + 1], jobs[j + 2], jobs[j + 3]
                step_d, step_h, step_w = jobs[j + 4], jobs[j + 5], jobs[j + 6]
                count, full, line, tail = jobs[j + 9], jobs[j + 10], jobs[j + 11], jobs[j + 12]
                b = address(filters) + (jobs[j + 7] + channel * count) * item
                reads = address(places) + jobs[j + 8] * 8
                for d in range(depth):
                    start = room_at + d * height_of * pitch * item
                    for t in range(full + tail):
                        at, size = t * most, most
                        if t >= full:
                            at, size = full * most + lines[line + t - full], lines[line + tail + t - full]
                        offset = at * vector * item
                        correlate_run(size, out, result_at + offset, start + offset, b, reads, count)
                    if bias.size > 0:
                        for i in range((height - 1) * pitch + width):
                            result[i] += bias[channel]
                    for h in range(height):
                        place = goal + out_first + d * step_d + h * step_h
                        if step_w == 1:
                            to = address(out) + place * item
                            move_line(1, out, to, result_at + h * pitch * item, width, item)
                            continue
                        pixels = array_at(result_at, h * pitch, width, out)
                        target = array_at(address(out), place, (width - 1) * step_w + 1, out)
                        for w in range(width):
                            target[step_w * w] = pixels[w]


@kernel
def _weight_sums(
    image: Read1,
    gradient: Read1,
    room: Write1,
    slopes: Write1,
    total: Write1,
    filling: ReadInt64,
    slope_filling: ReadInt64,
    numbers: ReadInt64,
    places: ReadInt64,
    line: ReadInt64,
    first: int,
    last: int,
) -> None:
    """Of the outputs from ``first`` to below ``last``, counted through all groups."""
    batch, groups, outputs, channels = numbers[0], numbers[1], numbers[2], numbers[3]
    volume, rows, width, count = numbers[4], numbers[5], numbers[6], numbers[7]
    plane, item = filling[0] * filling[1] * filling[2], filling[16]
    pixels = slope_filling[0] * slope_filling[1] * slope_filling[2]
    tiles = line.size // 2
    for group in range(first // outputs, (last + outputs - 1) // outputs):
        for n in range(batch):
            number = n * groups + group
            for c in range(channels):
                source = address(image) + (number * channels + c) * plane * item
                _fill(total, source, address(room) + c * volume * item, filling)
            for o in range(max(first - group * outputs, 0), min(last - group * outputs, outputs)):
                source = address(gradient) + (number * outputs + o) * pixels * item
                _fill(total, source, address(slopes), slope_filling)
                for d in range(slope_filling[0]):
                    a = address(room) + d * filling[13] * filling[15] * item
                    b = address(slopes) + d * slope_filling[13] * slope_filling[15] * item
                    for t in range(tiles):
                        at, size = line[t], line[tiles + t]
                        target = address(total) + ((group * outputs + o) * rows + at) * width * item
                        add_products(size, total, target, a, address(places) + at * 8, b, count)


@helper
def _fill(like: Write1, source: int, target: int, numbers: ReadInt64) -> None:
    """Copies a channel to its place in the room, whose zeros stay."""
    size_d, size_h, size_w = numbers[0], numbers[1], numbers[2]
    step_d, step_h, step_w = numbers[3], numbers[4], numbers[5]
    depth, height, width, pitch, item = numbers[12], numbers[13], numbers[14], numbers[15], numbers[16]
    goal = 0
    for i in range(numbers[9]):
        for j in range(numbers[10]):
            for k in range(numbers[11]):
                ahead = numbers[8] - k
                first = max((ahead + step_w - 1) // step_w, 0)
                last = min((size_w + ahead + step_w - 1) // step_w, width)
                for d in range(depth):
                    plane = d * step_d + i - numbers[6]
                    line = j - numbers[7]
                    for _ in range(height):
                        if plane >= 0 and plane < size_d and line >= 0 and line < size_h and first < last:
                            start = (plane * size_h + line) * size_w + first * step_w - ahead
                            place = target + (goal + first) * item
                            if step_w == 2:
                                move_line(2, like, place, source + start * item, last - first, item)
                            elif step_w == 1:
                                move_line(1, like, place, source + start * item, last - first, item)
                            else:
                                pixels = array_at(source, start, (last - first) * step_w, like)
                                placed = array_at(place, 0, last - first, like)
                                for w in range(last - first):
                                    placed[w] = pixels[step_w * w]
                        line += step_h
                        goal += pitch
