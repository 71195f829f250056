"""Convolution on the CPU: which family of kernels computes it, which follows from shapes and layouts and is found out
once for each of them.

The families are modules beside this one, each with `forward`, `input_gradient` and `weight_gradient` of the same
arguments, and with conditions that say where it is the fastest. `arrays` serves what none of them does.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from engine.ops.conv import arrays, columns, direct, few_pixels, planes, pointwise, winograd
from engine.ops.conv.images import in_channels_last
from engine.ops.shared.windows import Axes, ConvWindow, channels_first
from engine.rules.layout import MemoryFormat, contiguous_format

Array = Any
Way = Callable[..., Array]
Flags = tuple[bool, bool]


def convolve(
    xp: ModuleType, input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    contiguous = input.flags.c_contiguous, weight.flags.c_contiguous
    way = _forward(input.dtype.char, input.shape, weight.shape, window, memory_format, contiguous)
    return way(input, weight, bias, window, memory_format)


def convolve_transposed(
    xp: ModuleType,
    input: Array,
    weight: Array,
    bias: Array,
    size: Axes,
    window: ConvWindow,
    memory_format: MemoryFormat,
) -> Array:
    """See `engine.ops.conv.arrays.convolve_transposed`."""
    char = input.dtype.char
    if char not in "fd":  # sums and the bias are in float32
        return arrays.convolve_transposed(xp, input, weight, bias, size, window, memory_format)
    contiguous = input.flags.c_contiguous, weight.flags.c_contiguous
    way = _input_gradient(char, input.shape, weight.shape, size, window, memory_format, contiguous)
    result = way(input, weight, size, window, memory_format)
    if bias is not None:
        result += bias.reshape(-1, *(1,) * len(size))
    return result


def weight_gradient(
    xp: ModuleType, gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes
) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`."""
    contiguous = gradient.flags.c_contiguous, input.flags.c_contiguous
    way = _weight_gradient(input.dtype.char, gradient.shape, input.shape, size, window, contiguous)
    return way(gradient, input, window, size, weight_stride)


def in_one_layout(gradient: Array, input: Array, weight: Axes, window: ConvWindow) -> Array:
    """The gradient of the result, as both gradients of a convolution read it: its layout changes once, not twice."""
    if gradient.ndim != 4 or gradient.dtype.char not in "fd":
        return gradient
    kernel, size = weight[2:], input.shape[2:]
    if pointwise.serves(window, kernel, size, gradient.shape[2:]):
        turn = not pointwise.lies_in_rows(input)
    else:
        turn = _both_turn(gradient, input, weight, window)
    return channels_first(in_channels_last(gradient)) if turn else gradient


def _both_turn(gradient: Array, input: Array, weight: Axes, window: ConvWindow) -> bool:
    """Whether each would read a row-major gradient from far memory, to turn it around for itself.

    A step of a small CNN, 32 to 64 channels, 64 images of 14x14: 21.2 to 20.3 ms; where the products weigh more
    nothing is gained, and in groups a twenty-fifth is lost.
    """
    contiguous = gradient.flags.c_contiguous, input.flags.c_contiguous
    if window.groups > 1 or not contiguous[0]:
        return False
    char, size = gradient.dtype.char, input.shape[2:]
    of_weight = _weight_gradient(char, gradient.shape, input.shape, weight, window, contiguous)
    of_input = _input_gradient(char, gradient.shape, weight, size, window, contiguous_format, (True, True))
    return of_weight is direct.weight_gradient and of_input in (direct.input_gradient, winograd.input_gradient)


# --- the choice -------------------------------------------------------------------------------------------------------


@lru_cache(4096)
def _forward(
    char: str, input: Axes, weight: Axes, window: ConvWindow, memory_format: MemoryFormat, contiguous: Flags
) -> Way:
    size, kernel, row_major = input[2:], weight[2:], memory_format is contiguous_format
    if char not in "fd" or 0 in input or 0 in weight:
        return partial(arrays.convolve, np)
    out = window.positions(size, kernel)
    if planes.serves(window, weight, out, np.dtype(char), row_major):
        return planes.forward
    if pointwise.serves(window, kernel, size, out):
        return _in_two(_forward_of_lines, pointwise.forward, kernel)
    if few_pixels.serves(window, weight, input[0], out, row_major and contiguous[1]):
        return few_pixels.forward
    if winograd.serves(window, weight, input[0], out):
        return winograd.forward
    return direct.forward if direct.serves(window, kernel, weight[1]) else partial(arrays.convolve, np)


@lru_cache(4096)
def _input_gradient(
    char: str,
    gradient: Axes,
    weight: Axes,
    size: Axes,
    window: ConvWindow,
    memory_format: MemoryFormat,
    contiguous: Flags,
) -> Way:
    out, kernel, row_major = gradient[2:], weight[2:], memory_format is contiguous_format
    if 0 in gradient or 0 in weight:
        return _input_gradient_of_arrays
    if pointwise.serves(window, kernel, size, out):
        return _in_two(_input_gradient_of_lines, pointwise.input_gradient, kernel)
    if direct.serves_input_gradient(window, kernel, weight[1]):
        if few_pixels.serves(window, weight, gradient[0], out, row_major and contiguous[1]):
            return few_pixels.input_gradient
        if planes.serves_input_gradient(window, weight, size, row_major):
            return planes.input_gradient
        if winograd.serves_input_gradient(window, weight, gradient[0], size):
            return winograd.input_gradient
        return direct.input_gradient
    if len(kernel) == 3:
        return _input_gradient_of_arrays
    return _in_two(_input_gradient_of_lines, columns.input_gradient, kernel)


@lru_cache(4096)
def _weight_gradient(char: str, gradient: Axes, input: Axes, size: Axes, window: ConvWindow, contiguous: Flags) -> Way:
    out, kernel = gradient[2:], size[2:]
    if char not in "fd" or 0 in gradient or 0 in input:
        return partial(arrays.weight_gradient, np)
    if planes.serves(window, size, out, np.dtype(char), all(contiguous)):
        return planes.weight_gradient
    if pointwise.serves(window, kernel, input[2:], out):
        return _in_two(_weight_gradient_of_lines, pointwise.weight_gradient, kernel)
    if few_pixels.serves(window, size, input[0], out, contiguous[1]):
        return few_pixels.weight_gradient
    return direct.weight_gradient if direct.serves(window, kernel, size[1]) else partial(arrays.weight_gradient, np)


# --- one spatial axis, and what no family serves ----------------------------------------------------------------------


def _in_two(on_lines: Way, way: Way, kernel: Axes) -> Way:
    """A way of two spatial axes, or as it serves one."""
    return partial(on_lines, way) if len(kernel) == 1 else way


def _forward_of_lines(
    way: Way, input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    return way(_flat(input), _flat(weight), bias, window.in_two_dimensions(), memory_format)[:, :, 0]


def _input_gradient_of_lines(
    way: Way, gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    return way(_flat(gradient), _flat(weight), (1, *size), window.in_two_dimensions(), memory_format)[:, :, 0]


def _weight_gradient_of_lines(
    way: Way, gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes
) -> Array:
    flat_size = *size[:2], 1, size[2]
    return way(_flat(gradient), _flat(input), window.in_two_dimensions(), flat_size, weight_stride)[:, :, 0]


def _flat(array: Array) -> Array:
    """(N, C, L) as (N, C, 1, L)."""
    return array[:, :, None]


def _input_gradient_of_arrays(
    gradient: Array, weight: Array, size: Axes, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    return arrays.convolve_transposed(np, gradient, weight, None, size, window, memory_format)
