"""Convolution of float32 and float64 on the CPU by the direct kernels of `engine.ops.conv.kernels.correlate`.

Images are (N, C, d...) with one to three spatial axes in any layout. They are computed in channels-last: a row-major
one changes its layout where it gets its padding, a few images at a time, and the result where it is stored, so that
both happen in the cache.
"""

from functools import lru_cache, partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from engine.ops.conv.images import Result, Three, as_volumes, dense, in_groups, padded, three
from engine.ops.conv.kernels import correlate as kernels
from engine.ops.conv.kernels import depthwise, packing
from engine.ops.shared.windows import Axes, ConvWindow, channels_first, channels_last
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.sharing import threads

Array = Any
Phase = tuple[int, int, int, int, int]


def serves(window: ConvWindow, kernel: Axes, channels: int) -> bool:
    """Whether these kernels do it, and better than others; `channels` are those of a group."""
    if window.groups > 1 and channels == 1:
        return True
    return len(kernel) < 3 or (window.groups == 1 and window.dilation[2] == 1)


def serves_input_gradient(window: ConvWindow, kernel: Axes, channels: int) -> bool:
    """The same for the gradient of the input.

    To few channels columns are faster: 3x3, 16 outputs, 3 channels, 32 images of 32x32: 0.8 ms, here 1.4.
    """
    if not serves(window, kernel, channels) or (window.groups == 1 and channels < 8):
        return False
    return all(stride == 1 or dilation == 1 for stride, dilation in zip(window.stride, window.dilation, strict=True))


class _Moves(NamedTuple):
    """How windows move over images, along three axes."""

    before: Three
    """Zeros in front of an image,"""
    size: Three
    """and its size with them and those behind it."""
    moves: Three
    """Elements of such images from the window of an output pixel to that of the next one,"""
    gaps: Three
    """and from an element of a window to the next one."""


@lru_cache(4096)
def _moves(size: Axes, channels: int, window: ConvWindow) -> _Moves:
    """For images (N, D, H, W, C) of this size."""
    before, stride, dilation = three(window.padding, 0), three(window.stride, 1), three(window.dilation, 1)
    whole = tuple(extent + 2 * pad for extent, pad in zip(size, before, strict=True))
    steps = _steps(whole, channels)
    return _Moves(before, whole, _times(steps, stride), _times(steps, dilation))


@lru_cache(4096)
def _walk(size: Axes, channels: int, window: ConvWindow, out: Axes, outputs: int) -> tuple[Three, Three, kernels.Walk]:
    """Of a convolution of images of this size: the zeros in front of them, their size with zeros, and the windows."""
    before, whole, moves, gaps = _moves(size, channels, window)
    pixels = three(out, 1)
    return before, whole, kernels.Walk(pixels, 0, moves, gaps, 0, _steps(pixels, outputs))


def _steps(size: Three, channels: int) -> Three:
    """Elements from a pixel to the next one along each axis of (N, D, H, W, C)."""
    return size[1] * size[2] * channels, size[2] * channels, channels


def _times(steps: Three, by: Three) -> Three:
    return tuple(step * factor for step, factor in zip(steps, by, strict=True))


def _is_depthwise(channels: int, groups: int) -> bool:
    return groups > 1 and channels == 1


def _one_an_output(image: Array, groups: int, outputs: int) -> Array:
    """The image (N, D, H, W, C) of a depthwise convolution with as many channels as there are outputs."""
    return image if outputs == groups else np.repeat(image, outputs // groups, axis=4)


def _packed(weight: Array, groups: int) -> tuple[Any, Array]:
    """The kernels for a weight (outputs, channels of a group, kd, kh, kw), and how they read it."""
    if _is_depthwise(weight.shape[1], groups):
        return depthwise, depthwise.pack(weight)
    return kernels, packing.pack(weight, groups)


def _room(channels: int, dtype: Any) -> int:
    """What depthwise kernels may read behind an image whose channels are less than two vectors."""
    two = 2 * packing.lanes(dtype)
    return two if channels < two else 0


def forward(input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    outputs, groups, kernel = weight.shape[0], window.groups, weight.shape[2:]
    out = window.positions(input.shape[2:], kernel)
    result = Result(len(input), outputs, out, input.dtype, memory_format)
    image = as_volumes(input)
    family, weights = _packed(weight.reshape(*weight.shape[:2], *three(kernel, 1)), groups)
    bias = None if bias is None else np.ascontiguousarray(bias)
    room = 0
    if family is depthwise:
        image, room = _one_an_output(image, groups, outputs), _room(outputs, input.dtype)
    before, size, walk = _walk(image.shape[1:4], image.shape[4], window, out, outputs)

    def compute(images: slice) -> None:
        some = padded(image[images], before, size, room)
        rows = result.open(images)
        family.correlate(some, walk, weights, bias, rows)
        result.close(images, rows)

    work = len(input) * prod(out) * weight.size // threads.PRODUCTS
    threads.share(compute, in_groups(len(input), size, image.shape[4], weight), work)
    return result.array


def weight_gradient(gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; in the strides asked for."""
    outputs, channels, *kernel = size
    groups = window.groups
    width, two = outputs // groups, 2 * packing.lanes(input.dtype)
    taps = three(tuple(kernel), 1)
    image, slopes = as_volumes(input), as_volumes(gradient)
    family: Any = kernels
    room = 0 if width % two == 0 else two
    if _is_depthwise(channels, groups):
        family, room = depthwise, _room(outputs, input.dtype)
        image, total = _one_an_output(image, groups, outputs), depthwise.total(outputs, taps, input.dtype)
    else:
        total = np.zeros((groups, packing.blocks(width, input.dtype), *taps, channels, two), input.dtype)
    before, extent, moves, gaps = _moves(image.shape[1:4], image.shape[4], window)
    # every thread has outputs of its own and sums them over the images in their order
    parts = threads.pieces(prod(total.shape[: -5 if family is kernels else 1]), 1)
    for images in in_groups(len(input), extent, image.shape[4], total, threads.usable_threads()):
        some = padded(image[images], before, extent, room)
        rows = padded(slopes[images], (0, 0, 0), slopes.shape[1:4], room)
        work = len(some) * prod(slopes.shape[1:4]) * prod(size) // threads.PRODUCTS
        threads.share(partial(family.weight_sums, some, moves, gaps, rows, total), parts, work)
    result = dense(size, weight_stride, input.dtype)
    (depthwise if family is depthwise else packing).unpack(total, result.reshape(outputs, channels, *taps))
    return result


def input_gradient(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`; without the bias.

    The pixels whose place modulo the stride is the same are reached by the same elements of the window. For each such
    phase the gradient is a convolution of stride 1 with those elements turned around.
    """
    groups = window.groups
    outputs, channels = weight.shape[0], weight.shape[1] * groups
    if _is_depthwise(weight.shape[1], groups) and outputs > groups:  # to each output a channel of its own
        every = input_gradient(gradient, weight, size, window._replace(groups=outputs), contiguous_format)
        sums = every.reshape(len(every), groups, outputs // groups, *size).sum(2)
        return sums if memory_format is contiguous_format else channels_first(np.ascontiguousarray(channels_last(sums)))
    image, room = as_volumes(gradient), 0
    if _is_depthwise(outputs // groups, groups):
        image, room = _one_an_output(image, groups, channels), _room(channels, gradient.dtype)
    result = Result(len(gradient), channels, size, gradient.dtype, memory_format)
    kernel, stride = three(weight.shape[2:], 1), three(window.stride, 1)
    # weights from outputs to channels: what `pack` calls outputs and channels change places within each group
    turned = weight.reshape(groups, outputs // groups, weight.shape[1], *kernel)
    turned = turned.swapaxes(1, 2).reshape(channels, outputs // groups, *kernel)
    before, whole, parts = _parts(three(size, 1), kernel, window, image.shape[4], channels)
    packed = []
    for part in parts:
        chosen = turned[:, :, *part.taps][:, :, ::-1, ::-1, ::-1]
        packed.append((part, *(_packed(chosen, groups) if chosen.size else (None, None))))

    def compute(images: slice) -> None:
        some = padded(image[images], before, whole, room)
        rows = result.open(images)
        for part, family, weights in packed:
            if weights is None:
                rows[:, *(slice(at, None, step) for at, step in zip(part.start, stride, strict=True))] = 0
                continue
            family.correlate(some, part.walk, weights, None, rows)
        result.close(images, rows)

    work = gradient.size // outputs * weight.size // threads.PRODUCTS
    threads.share(compute, in_groups(len(gradient), whole, outputs, weight), work)
    return result.array


class _Part(NamedTuple):
    """Those pixels of an input whose place modulo the stride is the same."""

    start: Three
    """The first of them."""
    taps: tuple[slice, ...]
    """The elements of the window that reach them."""
    walk: kernels.Walk
    """Of the turned window over the padded gradient."""


@lru_cache(4096)
def _parts(
    extent: Three, kernel: Three, window: ConvWindow, outputs: int, channels: int
) -> tuple[Three, Three, list[_Part]]:
    """Of the gradient of an input of this size: the zeros in front of the output's gradient, its size with them, and
    the parts.
    """
    stride, dilation = three(window.stride, 1), three(window.dilation, 1)
    axes, before, whole = input_phases(extent, kernel, window)
    steps, out_steps = _steps(whole, outputs), _steps(extent, channels)
    gaps, out_moves = _times(steps, dilation), _times(out_steps, stride)
    parts = []
    for phases in product(*axes):
        remainders, counts, starts, _, taps = zip(*phases, strict=True)
        first = sum(step * (pad + start) for step, pad, start in zip(steps, before, starts, strict=True))
        out_first = sum(step * at for step, at in zip(out_steps, remainders, strict=True))
        chosen = tuple(slice(tap, None, step) for tap, step in zip(taps, stride, strict=True))
        walk = kernels.Walk(counts, first, steps, gaps, out_first, out_moves)
        parts.append(_Part(remainders, chosen, walk))
    return before, whole, parts


def input_phases(extent: Three, kernel: Three, window: ConvWindow) -> tuple[list[list[Phase]], Three, Three]:
    """Of the gradient of an input of this size: the phases along each axis, how far the first windows begin before the
    output's gradient, and the extent of what all windows meet.
    """
    stride, dilation, padding = three(window.stride, 1), three(window.dilation, 1), three(window.padding, 0)
    axes = [
        [_phase(*numbers, remainder) for remainder in range(min(numbers[2], numbers[0]))]
        for numbers in zip(extent, kernel, stride, dilation, padding, strict=True)
    ]
    before: Three = tuple(max(max(-phase[2] for phase in axis), 0) for axis in axes)
    after = [
        max(phase[2] + (phase[1] - 1) + by * (phase[3] - 1) + 1 for phase in axis)
        for axis, by in zip(axes, dilation, strict=True)
    ]
    return axes, before, tuple(max(pad + end, 1) for pad, end in zip(before, after, strict=True))


def _phase(size: int, kernel: int, stride: int, dilation: int, padding: int, remainder: int) -> Phase:
    """Of the pixels ``remainder + stride * q`` along one axis: (remainder, their number, the output position where the
    turned window of pixel q = 0 begins, elements of the window that reach them, the first of these).
    """
    first = (remainder + padding) % stride
    taps = max(-(-(kernel - first) // stride), 0)
    start = (remainder + padding - first) // stride - dilation * (max(taps, 1) - 1)
    return remainder, -(-(size - remainder) // stride), start, taps, first
