"""Convolution on a GPU: 1x1 windows as products of cuBLAS on the images as they lie, others by cuDNN where that is
installed and serves (`engine.ops.conv.cudnn`), all others by the kernels of `engine.ops.conv.cuda`, which gather the
operands of products while they multiply.

The arrays are those of `engine.ops.conv.arrays`. float32 may be rounded to TF32 where
`engine.backends.cudnn.allow_tf32` allows it. What the kernels do not serve (float64 but for groups of few channels,
integers) is computed there, some images at a time.
"""

from math import prod
from types import ModuleType
from typing import Any

from engine.compat import cudnn
from engine.memory import backend
from engine.ops.conv import arrays as conv_arrays
from engine.ops.conv import cuda as kernels
from engine.ops.conv import cudnn as library
from engine.ops.matmul import gpu as matmul_cuda
from engine.ops.shared.windows import Axes, ConvWindow, channels_first, channels_last
from engine.rules.layout import MemoryFormat, contiguous_format

Array = Any

_COLUMNS_BYTES = 1 << 28  # of memory for columns, where there is no kernel that does without
_FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})


def convolve(
    xp: ModuleType, input: Array, weight: Array, bias: Array, window: ConvWindow, memory_format: MemoryFormat
) -> Array:
    """See `engine.ops.conv.arrays.convolve`."""
    if not _served(window, input, weight):
        out = window.positions(input.shape[2:], weight.shape[2:])
        parts = [
            conv_arrays.convolve(xp, input[images], weight, bias, window, memory_format)
            for images in _parts(input, window, weight.shape, out)
        ]
        return _joined(xp, parts, memory_format)
    out = (input.shape[0], weight.shape[0], *window.positions(input.shape[2:], weight.shape[2:]))
    return _run(xp, input, weight, bias, out, window, memory_format, adjoint=False)


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
    if not _served(window, input, weight):
        parts = [
            conv_arrays.convolve_transposed(xp, input[images], weight, bias, size, window, memory_format)
            for images in _parts(input, window, weight.shape, input.shape[2:])
        ]
        return _joined(xp, parts, memory_format)
    out = (input.shape[0], weight.shape[1] * window.groups, *size)
    return _run(xp, input, weight, bias, out, window, memory_format, adjoint=True)


def weight_gradient(
    xp: ModuleType, gradient: Array, input: Array, window: ConvWindow, size: Axes, weight_stride: Axes
) -> Array:
    """See `engine.ops.conv.arrays.weight_gradient`; row-major, or channels-last where `weight_stride` is."""
    if not (kernels.serves(size, gradient.dtype, window) and gradient.size and input.size):
        total = None
        for images in _parts(gradient, window, size, gradient.shape[2:]):
            part = conv_arrays.weight_gradient(xp, gradient[images], input[images], window, size, weight_stride)
            total = part if total is None else total + part
        return total
    if _is_pointwise(size, window, input.shape[2:], gradient.shape[2:]):
        slopes, rows = (_rows(channels_last(array)) for array in (gradient, input))
        if slopes is not None and rows is not None:
            out = xp.empty(size, input.dtype)
            matmul_cuda.write(xp, slopes.T, rows, out.reshape(size[:2]), tf32=_tf32())
            return out
    if weight_stride[1] == 1 and size[1] > 1:
        out = channels_first(xp.empty((size[0], *size[2:], size[1]), input.dtype))
    else:
        out = xp.empty(size, input.dtype)
    if library.weight_gradient(gradient, input, out, window, _tf32()):
        return out
    if kernels.wants_channels_last(size, input.dtype, window.groups):
        gradient, input = kernels.in_channels_last(gradient), kernels.in_channels_last(input)
    kernels.weight_gradient(gradient, input, out, window, _tf32())
    return out


def in_one_layout(gradient: Array, weight: Axes, groups: int) -> Array:
    """The gradient as both of its readers want it: the layout changes once, not twice."""
    if gradient.size and kernels.wants_channels_last(weight, gradient.dtype, groups):
        return kernels.in_channels_last(gradient)
    return gradient


def channel_sums(xp: ModuleType, gradient: Array) -> Array:
    """Sums (C,) of (N, C, d...) over all but the channels, in float32 for the half types."""
    rows = _rows(channels_last(gradient))
    if rows is not None and rows.size and gradient.dtype.name in _FLOATS:
        sums = xp.empty((1, rows.shape[1]), rows.dtype)
        matmul_cuda.write(xp, xp.ones((1, len(rows)), rows.dtype), rows, sums, tf32=False)
        return sums[0]
    wide = xp.float32 if gradient.dtype.itemsize == 2 else gradient.dtype
    return gradient.sum((0, *range(2, gradient.ndim)), dtype=wide).astype(gradient.dtype, copy=False)


def _tf32() -> bool:
    return cudnn.allow_tf32


def _parts(image: Array, window: ConvWindow, weight: Axes, out: Axes) -> list[slice]:
    """Some images at a time, the columns of whose windows (`out` of them) take up to _COLUMNS_BYTES."""
    bytes_each = prod(out) * prod(weight[1:]) * window.groups * max(image.itemsize, 4)
    at_once = max(_COLUMNS_BYTES // max(bytes_each, 1), 1)
    return [slice(first, first + at_once) for first in range(0, max(len(image), 1), at_once)]


def _joined(xp: ModuleType, parts: list[Array], memory_format: MemoryFormat) -> Array:
    if len(parts) == 1:
        return parts[0]
    if memory_format is contiguous_format:
        return xp.concatenate(parts)
    return channels_first(xp.concatenate([channels_last(part) for part in parts]))


def _served(window: ConvWindow, input: Array, weight: Array) -> bool:
    return bool(input.size and weight.size) and kernels.serves(weight.shape, input.dtype, window)


def _run(
    xp: ModuleType,
    source: Array,
    weight: Array,
    bias: Array,
    shape: Axes,
    window: ConvWindow,
    memory_format: MemoryFormat,
    adjoint: bool,
) -> Array:
    if memory_format is contiguous_format:
        out = backend.device_empty(shape, source.dtype)
    else:
        out = channels_first(backend.device_empty((shape[0], *shape[2:], shape[1]), source.dtype))
    if _is_pointwise(weight.shape, window, source.shape[2:], shape[2:]) and _multiply(
        xp, source, weight, bias, out, adjoint
    ):
        return out
    if library.convolve(source, weight, bias, out, window, adjoint, _tf32()):
        return out
    if kernels.wants_channels_last(weight.shape, source.dtype, window.groups):
        source = kernels.in_channels_last(source)
    kernels.convolve(source, weight, bias, out, window, adjoint, _tf32())
    return out


def _is_pointwise(weight: Axes, window: ConvWindow, size: Axes, out: Axes) -> bool:
    return prod(weight[2:]) == prod(window.stride) == window.groups == 1 and not any(window.padding) and size == out


def _multiply(xp: ModuleType, source: Array, weight: Array, bias: Array, out: Array, adjoint: bool) -> bool:
    """Fills `out` by one product of matrices, or a batch of them, where both images lie alike; says whether it did."""
    matrix = weight.reshape(weight.shape[:2])  # (O, C)
    rows, of_rows = _rows(channels_last(source)), _rows(channels_last(out))
    if rows is not None and of_rows is not None:
        if bias is not None:
            of_rows[...] = bias
        matmul_cuda.write(xp, rows, matrix if adjoint else matrix.T, of_rows, bias is not None, _tf32())
        return True
    if source.flags.c_contiguous and out.flags.c_contiguous:
        images, results = (array.reshape(*array.shape[:2], -1) for array in (source, out))
        if bias is not None:
            results[...] = bias[:, None]
        matmul_cuda.write(xp, matrix.T if adjoint else matrix, images, results, bias is not None, _tf32())
        return True
    return False


def _rows(image: Array) -> Array:
    """(N, d..., C) as (M, C), or None where that needs a copy."""
    return image.reshape(-1, image.shape[-1]) if image.flags.c_contiguous else None
