"""Convolution of row-major images in small groups, of few channels, or to few outputs: runs of pixels of one channel's
plane in vector registers.

Images are (N, C, D, H, W), C-contiguous. A group's channels are copied into the form of `engine.kernels.filling`, where
a whole plane is one run. Each copy stays in the cache, and image and result are visited once. A vector that is read
serves several outputs of its group: most begin somewhere in a line of memory, and take two reads.

Elements of a result are chains of fused multiply-adds in the order of the window, then of the channels, as in
`engine.ops.conv.kernels.correlate`: the same bits. Weights are summed in `engine.kernels.vectors.LINE` bytes for each,
image by image, and then across those.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from engine.kernels.filling import Filling, Taps, fill
from engine.kernels.jit import kernel
from engine.kernels.language import Read1, ReadInt64, Write1, add_products, address, array_at, correlate_run
from engine.kernels.tiling import move_lines, tiles
from engine.kernels.vectors import LINE, RUNS, product_outputs, product_prices, run_prices
from engine.ops.conv.kernels.packing import lanes
from engine.sharing import threads

Array = np.ndarray
Three = tuple[int, int, int]


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
        run(image.reshape(-1), np.zeros(filling.room(channels, dtype), dtype), *arrays, *numbers, part.start, part.stop)

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
    vector, together = lanes(dtype), RUNS if outputs >= RUNS else 1
    table: list[int] = []
    lines: list[Array] = []
    places: list[Array] = []
    read, taken, longest = 0, 0, 0
    for job in jobs:
        vectors = -(-((job.size[1] - 1) * filling.pitch + job.size[2]) // vector)
        full, line = _tiles(vectors, together)
        met = job.taps.places(filling, channels)
        before = sum(map(len, lines))
        table += [*job.size, job.out_first, *job.steps, read, taken, len(met), full, before, len(line) // 2]
        read, taken, longest = read + groups * outputs * len(met), taken + len(met), max(longest, vectors)
        lines.append(line)
        places.append(met)
    most = max(run_prices(together))
    numbers = [groups, outputs, channels, filling.volume, longest * vector, out_size, vector, most, together]
    of_jobs = np.array(table, np.int64)
    whole = np.array(numbers, np.int64)
    return filling.numbers(dtype), whole, of_jobs, np.concatenate(places), np.concatenate(lines)


def _tiles(vectors: int, outputs: int) -> tuple[int, Array]:
    """How many of the biggest tiles a run of so many outputs begins with, and starts and sizes of the others, counted
    from their end.
    """
    prices = run_prices(outputs)
    full = max(vectors // max(prices) - 1, 0)
    return full, tiles(vectors - full * max(prices), True, prices).reshape(-1)


def weight_sums(image: Array, filling: Filling, taps: Taps, gradient: Array, groups: int) -> Array:
    """(groups, outputs, window * channels) of ``image`` (N, groups * channels, D, H, W) and ``gradient`` (N, groups *
    outputs, d, h, w): the sums over all pixels of the gradient times what the element of the window meets for each.
    """
    dtype, line = image.dtype, LINE // image.itemsize
    channels, outputs = image.shape[1] // groups, gradient.shape[1] // groups
    slopes, numbers = _summation(filling, taps, gradient.shape[2:], len(image), groups, outputs, channels, dtype)
    count, together = len(numbers[3]), product_outputs()
    total = np.zeros((groups, outputs, count, line), dtype)
    run = _weight_sums[dtype.char]

    def compute(part: slice) -> None:
        rooms = np.zeros(filling.room(channels, dtype), dtype), np.zeros(slopes.room(together, dtype), dtype)
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
) -> tuple[Filling, tuple[Array, ...]]:
    """How a gradient of this size lies, and what the kernel gets besides arrays: of both fillings and of all, the
    places, and the tiles of one output and of several together.
    """
    line = LINE // dtype.itemsize
    # a run may be read to the end of a line of memory behind a plane, in zeros
    height = size[1] + -(-line // filling.pitch)
    slopes = Filling(size, (1, 1, 1), (0, 0, 0), (1, 1, 1), size[0], height, size[2], filling.pitch)
    places = taps.places(filling, channels)
    count = -(-((size[1] - 1) * filling.pitch + size[2]) // line)
    together = product_outputs()
    numbers = [batch, groups, outputs, channels, filling.volume, len(places), line, count, slopes.volume, together]
    cuts = [tiles(len(places), False, product_prices(many)).reshape(-1) for many in (1, together)]
    return slopes, (filling.numbers(dtype), slopes.numbers(dtype), np.array(numbers, np.int64), places, *cuts)


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
    longest, out_size, vector, most, together = numbers[4], numbers[5], numbers[6], numbers[7], numbers[8]
    plane, height_of, pitch, item = filling[0] * filling[1] * filling[2], filling[13], filling[15], filling[16]
    result = np.empty(together * longest, out.dtype)
    result_at, room_at = address(result), address(room)
    for number in range(first, last):
        for c in range(channels):
            source = address(image) + (number * channels + c) * plane * item
            fill(out, source, room_at + c * volume * item, filling)
        for begin in range(0, outputs, together):
            o = min(begin, outputs - together)  # the last outputs are some of those before them
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
                        to, begin_at = result_at + offset, start + offset
                        correlate_run(size, together, out, to, longest, begin_at, b, count, reads, count)
                    for r in range(together):
                        row, place = r * longest, goal + r * out_size + out_first + d * step_d
                        if bias.size > 0:
                            for i in range(row, row + (height - 1) * pitch + width):
                                result[i] += bias[channel + r]
                        if step_w == 1:
                            to = address(out) + place * item
                            move_lines(1, out, to, step_h, result_at + row * item, pitch, height, width, item)
                            continue
                        for h in range(height):
                            pixels = array_at(result_at, row + h * pitch, width, out)
                            target = array_at(address(out), place + h * step_h, (width - 1) * step_w + 1, out)
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
    wide_line: ReadInt64,
    first: int,
    last: int,
) -> None:
    """Of the outputs from ``first`` to below ``last``, counted through all groups."""
    batch, groups, outputs, channels = numbers[0], numbers[1], numbers[2], numbers[3]
    volume, rows, width, count = numbers[4], numbers[5], numbers[6], numbers[7]
    slope_volume, together = numbers[8], numbers[9]
    plane, item = filling[0] * filling[1] * filling[2], filling[16]
    pixels = slope_filling[0] * slope_filling[1] * slope_filling[2]
    for group in range(first // outputs, (last + outputs - 1) // outputs):
        for n in range(batch):
            number = n * groups + group
            for c in range(channels):
                source = address(image) + (number * channels + c) * plane * item
                fill(total, source, address(room) + c * volume * item, filling)
            o, end = max(first - group * outputs, 0), min(last - group * outputs, outputs)
            while o < end:
                many = together if end - o >= together else 1
                cut = line if many == 1 else wide_line
                for r in range(many):
                    source = address(gradient) + (number * outputs + o + r) * pixels * item
                    fill(total, source, address(slopes) + r * slope_volume * item, slope_filling)
                for d in range(slope_filling[0]):
                    a = address(room) + d * filling[13] * filling[15] * item
                    b = address(slopes) + d * slope_filling[13] * slope_filling[15] * item
                    for t in range(cut.size // 2):
                        at, size = cut[t], cut[cut.size // 2 + t]
                        target = address(total) + ((group * outputs + o) * rows + at) * width * item
                        reads = address(places) + at * 8
                        add_products(size, many, total, target, rows * width, a, reads, b, slope_volume, count)
                o += many
