"""The weights of a convolution as the direct kernels read them, and their gradient back in the weights' own strides.

Packed is (groups, blocks, window, channels of a group, a block's outputs), a block being two vectors of the outputs of
a group: what a tile reads is one run of memory. A last block that they do not fill begins inside the one before it.

Outputs lie next to each other there and apart in a weight: blocks are turned around in registers where the weight lies
row-major or channels-last. 512 to 512 channels, 3x3, row-major: pack 6.1 to 2.1 ms, unpack 10.5 (NumPy) to 2.8.
"""

import math

import numpy as np

from engine.kernels.jit import helper, kernel
from engine.kernels.language import ReadStrided5, Write1, address, array_at
from engine.kernels.tiling import elements, turn
from engine.kernels.vectors import vector_bytes

Array = np.ndarray

_AT_ONCE = 16  # channels of eight outputs whose windows are turned around together, in the first-level cache


def lanes(dtype: np.dtype) -> int:
    """Elements of a vector register."""
    return vector_bytes() // dtype.itemsize


def blocks(outputs: int, dtype: np.dtype) -> int:
    """In how many blocks the outputs of a group are packed."""
    return -(-outputs // (2 * lanes(dtype)))


def pack(weight: Array, groups: int) -> Array:
    """(groups, blocks, window, channels, 2 vectors) of (outputs, channels of a group, kd, kh, kw), any strides."""
    outputs, channels, *window = weight.shape
    width, two = outputs // groups, 2 * lanes(weight.dtype)
    packed = np.empty((groups, blocks(width, weight.dtype), *window, channels, two), weight.dtype)
    if width < two:
        packed.fill(0)
    _repack(weight, packed, back=False)
    return packed


def unpack(packed: Array, weight: Array) -> None:
    """Fills a weight (outputs, channels of a group, kd, kh, kw) of any strides with what is packed."""
    _repack(weight, packed, back=True)


def _repack(weight: Array, packed: Array, back: bool) -> None:
    if weight.shape[1] == 1 and weight[:1].flags.c_contiguous:  # a window of one channel, or so many channels
        weight = weight.reshape(len(weight), -1, 1, 1, 1)
    vector, flat, char = lanes(weight.dtype), packed.reshape(-1), weight.dtype.char
    groups, number = packed.shape[:2]
    if weight.strides[1] != weight.itemsize and weight[:1].flags.c_contiguous:
        scratch = np.empty(_AT_ONCE * math.prod(weight.shape[2:]) * 8, weight.dtype)
        _repack_row_major[char](weight, flat, scratch, groups, number, vector, _AT_ONCE, 8, back)
    else:
        _repack_strided[char](weight, flat, groups, number, vector, back)


@helper
def block_of(number: int, outputs: int, vector: int) -> tuple[int, int, int]:
    """The first of a block's outputs, how many they are, and as how many they are computed: one vector or two."""
    first = number * 2 * vector
    here = min(outputs - first, 2 * vector)
    across = 2 * vector if here > vector else vector
    if here < across and outputs >= across:
        return outputs - across, across, across
    return first, here, across


@helper
def copy_eight(target: Array, source: Array) -> None:
    """``target[:8] = source[:8]``, all read before any is written."""
    a, b, c, d = source[0], source[1], source[2], source[3]
    e, f, g, h = source[4], source[5], source[6], source[7]
    target[0], target[1], target[2], target[3] = a, b, c, d
    target[4], target[5], target[6], target[7] = e, f, g, h


# The weight is written if ``back``; else it may be one that must not be. ``eight`` is a parameter since a literal would
# be a type of its own, for which `turn` is compiled again.
@kernel
def _repack_row_major(
    weight: ReadStrided5,
    packed: Write1,
    scratch: Write1,
    groups: int,
    blocks: int,
    vector: int,
    at_once: int,
    eight: int,
    back: bool,
) -> None:
    every, channels, window_d, window_h, window_w = weight.shape
    taps, outputs, item = window_d * window_h * window_w, every // groups, packed.itemsize
    step_o, step_c, _, _, _ = elements(weight.strides, item)
    two = 2 * vector
    for block in range(groups * blocks):
        first, here, _ = block_of(block % blocks, outputs, vector)
        source = address(weight) + (block // blocks * outputs + first) * step_o * item
        goal = address(packed) + block * taps * channels * two * item
        for o in range(0, here, 8):
            many = min(8, here - o)
            for c in range(0, channels, at_once):
                run = min(at_once, channels - c)
                at = source + (o * step_o + c * step_c) * item
                if not back:
                    turn(packed, item, at, step_o, address(scratch), eight, many, run * taps)
                for k in range(run):
                    for tap in range(taps):
                        row = array_at(address(scratch), (k * taps + tap) * 8, 8, packed)
                        place = array_at(goal, (tap * channels + c + k) * two + o, many, packed)
                        if many == 8 and back:
                            copy_eight(row, place)
                        elif many == 8:
                            copy_eight(place, row)
                        elif back:
                            for r in range(many):
                                row[r] = place[r]
                        else:
                            for r in range(many):
                                place[r] = row[r]
                if back:
                    turn(packed, item, address(scratch), eight, at, step_o, run * taps, many)


@kernel
def _repack_strided(weight: ReadStrided5, packed: Write1, groups: int, blocks: int, vector: int, back: bool) -> None:
    every, channels, window_d, window_h, window_w = weight.shape
    taps, outputs, item = window_d * window_h * window_w, every // groups, packed.itemsize
    step_o, step_c, step_d, step_h, step_w = elements(weight.strides, item)
    two = 2 * vector
    for block in range(groups * blocks):
        first, here, _ = block_of(block % blocks, outputs, vector)
        source = address(weight) + (block // blocks * outputs + first) * step_o * item
        goal = address(packed) + block * taps * channels * two * item
        if step_c == 1:
            for tap in range(taps):
                d, h, w = tap // (window_h * window_w), tap // window_w % window_h, tap % window_w
                start, step, rows = source + (d * step_d + h * step_h + w * step_w) * item, step_o, here
                to, to_step, columns = goal + tap * channels * two * item, two, channels
                if back:
                    start, step, rows, to, to_step, columns = to, to_step, columns, start, step, rows
                turn(packed, item, start, step, to, to_step, rows, columns)
        else:  # with the window inside, what a cache line of the weight holds is used while it is there
            for c in range(channels):
                for d in range(window_d):
                    for h in range(window_h):
                        for w in range(window_w):
                            start = c * step_c + d * step_d + h * step_h + w * step_w
                            tap = (d * window_h + h) * window_w + w
                            inside = array_at(goal, (tap * channels + c) * two, here, packed)
                            for o in range(here):
                                outside = array_at(source, start + o * step_o, 1, packed)
                                if back:
                                    outside[0] = inside[o]
                                else:
                                    inside[o] = outside[0]
