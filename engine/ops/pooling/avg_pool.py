"""Average pooling by fixed windows. A linear map: its derivative `avg_pool_gradient` has `avg_pool` as derivative
again.

Results carry the input's memory format on. Source: torch.nn.functional.avg_pool2d;
aten/src/ATen/native/cpu/AvgPoolKernel.cpp.
"""

from functools import lru_cache, reduce
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.ops.resample.operator import AxisMap, separable, windowed_mean
from engine.ops.shared.fused import from_pool, served, to_pool
from engine.ops.shared.operands import require_real
from engine.ops.shared.windows import (
    Axes,
    as_batch,
    channels_first,
    channels_last,
    compiled,
    formatted,
    lies_channels_last,
    pooled_shape,
    suggested_format,
)
from engine.rules.dtypes import int64
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


@lru_cache(1024)
def averaging(size: int, out: int, kernel: int, stride: int, padding: int, count_padding: bool, sums: bool) -> AxisMap:
    """Windowed means (or sums) along one axis.

    A mean divides by the window's length with or without the padding in it.
    """
    begin = np.arange(out) * stride - padding
    end = np.minimum(begin + kernel, size + padding)
    begin, end = np.maximum(begin, 0), np.minimum(end, size)
    lengths = np.ones(out) if sums else _lengths(size, out, kernel, stride, padding, count_padding)
    return windowed_mean(size, begin, end, lengths)


def _lengths(size: int, out: int, kernel: int, stride: int, padding: int, count_padding: bool) -> np.ndarray:
    begin = np.arange(out) * stride - padding
    end = np.minimum(begin + kernel, size + padding)
    return end - begin if count_padding else np.minimum(end, size) - np.maximum(begin, 0)


def _rule(
    input: Spec,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Spec:
    dims = len(kernel)
    name = f"avg_pool{dims}d"
    if input.dtype is not int64:
        require_real(name, input)
    if divisor == 0:
        raise RuntimeError(f"{name}: divisor must be not zero")
    out = pooled_shape(name, tuple(input.shape), kernel, stride, padding, (1,) * dims, ceil_mode)
    return formatted(input, (*input.shape[:-dims], *out), _format(input, dims))


def _format(input: Spec, dims: int) -> MemoryFormat:
    """PyTorch's three-dimensional kernel does not keep channels-last."""
    return contiguous_format if dims == 3 else suggested_format(input, dims)


def _avg_pool(
    xp: ModuleType,
    input: Array,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Array:
    dims = len(kernel)
    out: Any = pooled_shape(f"avg_pool{dims}d", input.shape, kernel, stride, padding, (1,) * dims, ceil_mode)
    if input.dtype.kind == "i":
        sums = _avg_pool(xp, input.astype(xp.float64), kernel, stride, padding, ceil_mode, count_padding, 1)
        axes = zip(input.shape[-dims:], out, kernel, stride, padding, strict=True)
        counts = divisor or reduce(np.multiply.outer, [_lengths(*axis, count_padding) for axis in axes])
        return xp.trunc(sums / xp.asarray(counts)).astype(input.dtype)  # as C++ divides
    if dims != 2 or not compiled(xp, input) or not input.size:
        maps = tuple(
            averaging(*axis, count_padding, divisor is not None)
            for axis in zip(input.shape[-dims:], out, kernel, stride, padding, strict=True)
        )
        result = separable(xp, input, maps)
        return result if divisor is None else result / input.dtype.type(divisor)
    from engine.ops.pooling.kernels import avg_pool as pool

    image = as_batch(input, 2)
    window: Any = (kernel, stride, padding, count_padding, divisor)
    if lies_channels_last(image):
        result = channels_first(pool.avg_pool2d_forward(channels_last(image), out, *window))
    elif kernel == input.shape[-2:] and not any(padding):
        # One window: 64 images of 512 planes of 7x7 in 0.2 ms by a product with ones, 12 by the general kernel.
        planes = np.ascontiguousarray(image).reshape(-1, prod(kernel))
        sums = planes @ np.ones(planes.shape[1], input.dtype)
        sums /= input.dtype.type(divisor or prod(kernel))
        result = sums.reshape(*image.shape[:2], 1, 1)
    else:
        planes = np.ascontiguousarray(image).reshape(-1, *image.shape[2:])
        result = pool.avg_pool2d_forward(planes, out, *window).reshape(*image.shape[:2], *out)
    return result if input.ndim == 4 else result[0]


def _gradient(
    xp: ModuleType,
    gradient: Array,
    size: Axes,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
    memory_format: MemoryFormat,
) -> Array:
    dims = len(kernel)
    out = gradient.shape[-dims:]
    if dims != 2 or not compiled(xp, gradient) or not gradient.size:
        maps = tuple(
            averaging(*axis, count_padding, divisor is not None).adjoint
            for axis in zip(size, out, kernel, stride, padding, strict=True)
        )
        result = separable(xp, gradient, maps)
        return result if divisor is None else result / gradient.dtype.type(divisor)
    from engine.ops.pooling.kernels import avg_pool as pool

    image = as_batch(gradient, 2)
    window: Any = (kernel, stride, padding, count_padding, divisor)
    as_channels_last = memory_format is not contiguous_format
    if kernel == size and not any(padding):
        share = image / gradient.dtype.type(divisor or prod(kernel))
        if as_channels_last:
            rows = np.empty((image.shape[0], *size, image.shape[1]), gradient.dtype)
            rows[...] = channels_last(share)
            result = channels_first(rows)
        else:
            result = np.empty((*image.shape[:2], *size), gradient.dtype)
            result[...] = share
    elif as_channels_last:
        shape = (image.shape[0], *size, image.shape[1])
        rows = np.ascontiguousarray(channels_last(image))
        result = channels_first(pool.avg_pool2d_backward(rows, shape, *window))
    else:
        planes = np.ascontiguousarray(image).reshape(-1, *out)
        result = pool.avg_pool2d_backward(planes, (len(planes), *size), *window).reshape(*image.shape[:2], *size)
    return result if gradient.ndim == 4 else result[0]


def _backward(
    g: Any,
    nd: Any,
    input_spec: Spec,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> tuple[Any]:
    size, memory_format = tuple(input_spec.shape[-len(kernel) :]), _format(input_spec, len(kernel))
    window = (kernel, stride, padding, ceil_mode, count_padding, divisor)
    return (nd.avg_pool_gradient(g, size, *window, memory_format),)


AVG_POOL = define(
    "avg_pool",
    rule=_rule,
    forward=_avg_pool,
    backward=_backward,
    attributes="kernel stride padding ceil_mode count_padding divisor",
)
AVG_POOL_GRADIENT = define(
    "avg_pool_gradient",
    rule=lambda gradient, size, *rest: formatted(gradient, (*gradient.shape[: -len(size)], *size), rest[-1]),
    forward=_gradient,
    backward=(
        lambda g, nd, kernel, stride, padding, ceil_mode, count_padding, divisor: nd.avg_pool(
            g, kernel, stride, padding, ceil_mode, count_padding, divisor
        ),
    ),
    inputs="gradient",
    attributes="size kernel stride padding ceil_mode count_padding divisor memory_format",
)


def avg_pool(
    input: Tensor,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Tensor:
    """Mean of each window, arguments in canonical form; `avg_pool2d` is the public function."""
    return apply(AVG_POOL, (input,), (kernel, stride, padding, ceil_mode, count_padding, divisor))


def avg_pool_gradient(gradient: Tensor, size: Axes, *window: Any) -> Tensor:
    """The adjoint of `avg_pool`: (..., out...) to (..., size...), after the window's arguments the memory format."""
    return apply(AVG_POOL_GRADIENT, (gradient,), (size, *window))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@AVG_POOL.kernel("cuda")
def _avg_pool_cuda(
    xp: ModuleType,
    input: Array,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
) -> Array:
    if not input.size or not served(input):
        return _avg_pool(xp, input, kernel, stride, padding, ceil_mode, count_padding, divisor)
    from engine.ops.pooling import cuda as pool

    dims = len(kernel)
    image = as_batch(input, dims)
    out = pooled_shape(f"avg_pool{dims}d", input.shape, kernel, stride, padding, (1,) * dims, ceil_mode)
    as_channels_last = lies_channels_last(image)
    windows = pool.windows_of(input.shape[-dims:], out, kernel, stride, padding)
    found = pool.avg_pool_forward(to_pool(xp, image, as_channels_last), windows, count_padding, divisor)
    return from_pool(found, input.shape, as_channels_last)


@AVG_POOL_GRADIENT.kernel("cuda")
def _gradient_cuda(
    xp: ModuleType,
    gradient: Array,
    size: Axes,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    ceil_mode: bool,
    count_padding: bool,
    divisor: int | None,
    memory_format: MemoryFormat,
) -> Array:
    if not gradient.size or not served(gradient):
        window = (kernel, stride, padding, ceil_mode, count_padding, divisor)
        return _gradient(xp, gradient, size, *window, memory_format)
    from engine.ops.pooling import cuda as pool

    dims = len(kernel)
    as_channels_last = memory_format is not contiguous_format
    windows = pool.windows_of(size, gradient.shape[-dims:], kernel, stride, padding)
    slope = to_pool(xp, as_batch(gradient, dims), as_channels_last)
    found = pool.avg_pool_backward(slope, windows, count_padding, divisor)
    return from_pool(found, gradient.shape, as_channels_last)
