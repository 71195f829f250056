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

    def place(self, tap: Three) -> int:
        """The offset of what the first output pixel meets at this element of the window, counted with its gaps."""
        phase = [at % step for at, step in zip(tap, self.stride, strict=True)]
        d, h, w = (at // step for at, step in zip(tap, self.stride, strict=True))
        number = (phase[0] * self.phases[1] + phase[1]) * self.phases[2] + phase[2]
        return ((number * self.depth + d) * self.height + h) * self.pitch + w

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


class Job(NamedTuple):
    """Output pixels (d, h, w) below ``size`` of every channel, ``steps`` apart from ``out_first`` on, and the places in
    a group's room of what the first of them meets, in the order of its filters (groups, outputs of a group, places).
    """

    size: Three
    out_first: int
    steps: Three
    places: Array
    filters: Array


def correlate(image: Array, filling: Filling, jobs: list[Job], bias: Array | None, out: Array) -> None:
    """Fills ``out`` (N, groups * outputs, d, h, w) from ``image`` (N, groups * channels, D, H, W)."""
    dtype, vector = image.dtype, lanes(image.dtype)
    groups, outputs = jobs[0].filters.shape[:2]
    channels = image.shape[1] // groups
    table, lines, read, taken, longest = [], [], 0, 0, 0
    for job in jobs:
        vectors = -(-((job.size[1] - 1) * filling.pitch + job.size[2]) // vector)
        full, line = _tiles(vectors)
        lines.append(line)
        count = len(job.places)
        table += [
            *job.size,
            job.out_first,
            *job.steps,
            read,
            taken,
            count,
            full,
            sum(map(len, lines[:-1])),
            len(line) // 2,
        ]
        read, taken, longest = read + job.filters.size, taken + count, max(longest, vectors)
    numbers = np.array([groups, outputs, channels, filling.volume, longest * vector, out[0, 0].size, vector], np.int64)
    run = _correlate[dtype.char]
    flat = (
        np.concatenate([job.filters.reshape(-1) for job in jobs]),
        np.empty(0, dtype) if bias is None else np.ascontiguousarray(bias),
        out.reshape(-1),
        filling.numbers(dtype),
        numbers,
        np.array(table, np.int64),
        np.concatenate([job.places for job in jobs]),
        np.concatenate(lines),
    )

    def compute(part: slice) -> None:
        run(image.reshape(-1), filling.room(channels, dtype), *flat, part.start, part.stop)

    threads.in_pieces(compute, len(image) * groups, image.size + out.size * (1 + len(flat[-2]) // 4))


def _tiles(vectors: int) -> tuple[int, Array]:
    """How many of the biggest tiles a run begins with, and starts and sizes of the others, counted from their end."""
    prices = tile_prices(1)
    full = max(vectors // max(prices) - 1, 0)
    return full, tiles(vectors - full * max(prices), True, prices).reshape(-1)


def weight_sums(image: Array, filling: Filling, places: Array, gradient: Array, groups: int) -> Array:
    """(groups, outputs, places) of ``image`` (N, groups * channels, D, H, W) and ``gradient`` (N, groups * outputs, d,
    h, w): the sums over all pixels of the gradient times what the place is for each.
    """
    dtype, line = image.dtype, LINE // image.itemsize
    channels, outputs = image.shape[1] // groups, gradient.shape[1] // groups
    size: Three = (gradient.shape[2], gradient.shape[3], gradient.shape[4])
    # a run may be read to the end of a line of memory behind a plane, in zeros
    height = size[1] + -(-line // filling.pitch)
    slopes = Filling(size, (1, 1, 1), (0, 0, 0), (1, 1, 1), size[0], height, size[2], filling.pitch)
    total = np.zeros((groups, outputs, len(places), line), dtype)
    count = -(-((size[1] - 1) * filling.pitch + size[2]) // line)
    numbers = np.array([len(image), groups, outputs, channels, filling.volume, len(places), line, count], np.int64)
    run = _weight_sums[dtype.char]
    flat = (
        total.reshape(-1),
        filling.numbers(dtype),
        slopes.numbers(dtype),
        numbers,
        places,
        tiles(len(places), False, product_prices()).reshape(-1),
    )

    def compute(part: slice) -> None:
        rooms = filling.room(channels, dtype), slopes.room(1, dtype)
        run(image.reshape(-1), gradient.reshape(-1), *rooms, *flat, part.start, part.stop)

    threads.in_pieces(compute, groups * outputs, image.size + gradient.size * (1 + len(places) // 4))
    while line > 1:
        line //= 2
        total = total[..., :line] + total[..., line:]
    return total[..., 0]


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
