"""Maximum pooling: the maximum of each window and the place where it was found.

The derivative scatters to these places (`pool_scatter`), whose own derivative gathers from them (`pool_gather`), so a
maximum can be differentiated any number of times. Results carry the input's memory format on, as PyTorch's do. A
window's maximum is the first of equal elements; a window that contains NaN gives the last NaN.
Source: torch.nn.functional.max_pool2d; aten/src/ATen/native/cpu/MaxPoolKernel.cpp, AdaptiveMaxPoolKernel.cpp.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.ops.index.scattering import combine_at
from engine.ops.shared.fused import from_pool, served, to_pool
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
Pair = Any  # tuple[int, int]


@lru_cache(1024)
def window_members(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Array:
    """Positions (kernel, out) of the elements of each window along one axis.

    An element outside the image is replaced by the window's first or last one inside: seeing it twice changes no
    maximum.
    """
    start = np.arange(out) * stride - padding
    positions = start + np.arange(kernel)[:, None] * dilation
    first = np.where(start < 0, start + -(start // dilation) * dilation, start)
    last = start + np.minimum((size - 1 - start) // dilation, kernel - 1) * dilation
    return np.clip(positions, first, last)


@lru_cache(1024)
def adaptive_members(size: int, out: int) -> Array:
    """The same for `out` windows that divide an axis evenly.

    Window i is [floor(i size / out), ceil((i + 1) size / out)).
    """
    start, end = adaptive_bounds(size, out)
    return np.minimum(start + np.arange((end - start).max(initial=0))[:, None], end - 1)


def adaptive_bounds(size: int, out: int) -> tuple[Array, Array]:
    """Begin and end of each adaptive window."""
    at = np.arange(out)
    return at * size // max(out, 1), -((at + 1) * -size // max(out, 1))


def max_places(xp: ModuleType, image: Array, members: Sequence[Array]) -> tuple[Array, Array]:
    """Maxima (N, out..., C) of the windows of an image (N, d..., C), and their flat positions in the plane."""
    dims = len(members)
    best = place = None
    for tap in np.ndindex(*(len(axis) for axis in members)):
        value, position = image, 0
        for axis, at in enumerate(tap):
            index = members[axis][at]
            value = xp.take(value, xp.asarray(index), axis=axis + 1)
            shape = (1,) * (axis + 1) + (len(index),) + (1,) * (dims - axis)
            position = position * image.shape[axis + 1] + index.reshape(shape)
        position = xp.asarray(position)
        if best is None:
            best, place = value, xp.broadcast_to(position, value.shape).copy()
            continue
        better = (value > best) | (value != value)
        best = xp.where(better, value, best)
        place = xp.where(better, position, place)
    return best, place


def _max_rule(input: Spec, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, ceil_mode: bool) -> Spec:
    name = f"max_pool{len(kernel)}d"
    _refuse(name, input)
    out = pooled_shape(name, tuple(input.shape), kernel, stride, padding, dilation, ceil_mode)
    return formatted(input, (*input.shape[: -len(kernel)], *out), suggested_format(input, len(kernel)))


def _refuse(name: str, input: Spec) -> None:
    if input.dtype.is_complex or input.dtype.name == "bool":
        raise RuntimeError(f"{name}: not supported for {input.dtype} tensors, which have no order")


def _max_pool(
    xp: ModuleType, input: Array, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, ceil_mode: bool
) -> tuple[Array, Array]:
    dims = len(kernel)
    image = as_batch(input, dims)
    out = pooled_shape(f"max_pool{dims}d", input.shape, kernel, stride, padding, dilation, ceil_mode)
    if compiled(xp, input) and dims <= 2 and input.size:
        best, place = _compiled_max(image, out, kernel, stride, padding, dilation)
    else:
        members = tuple(map(window_members, image.shape[2:], out, kernel, stride, padding, dilation))
        best, place = map(channels_first, max_places(xp, channels_last(image), members))
    return (best, place) if input.ndim == dims + 2 else (best[0], place[0])


def _compiled_max(
    image: Array, out: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Array, Array]:
    """`engine.ops.pooling.kernels.max_pool` on the image as it lies; positions are int32."""
    from engine.ops.pooling.kernels import max_pool as pool

    if len(out) == 1:
        flat = np.ascontiguousarray(image)[:, :, None]
        window = [(value, *axis) for value, axis in zip((1, 1, 0, 1), (kernel, stride, padding, dilation), strict=True)]
        best, place = _compiled_max(flat, (1, *out), *window)
        return best[:, :, 0], place[:, :, 0]
    if lies_channels_last(image):
        best, place = pool.max_pool2d_forward(channels_last(image), out, kernel, stride, padding, dilation)
        return channels_first(best), channels_first(place)
    planes = np.ascontiguousarray(image).reshape(-1, *image.shape[2:])
    best, place = pool.max_pool2d_forward(planes, out, kernel, stride, padding, dilation)
    shape = (*image.shape[:2], *out)
    return best.reshape(shape), place.reshape(shape)


def _with_indices(xp: ModuleType, *arguments: Any) -> tuple[Array, Array]:
    best, place = _max_pool(xp, *arguments)
    return best, place.astype(np.int64, copy=False)


def _with_indices_rule(input: Spec, *attributes: Any) -> tuple[Spec, Spec]:
    out = _max_rule(input, *attributes)
    return out, out.like(dtype=int64)


def _max_backward_composed(
    g: Any,
    nd: Any,
    input: Any,
    input_spec: Spec,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    ceil_mode: bool,
) -> tuple[Any]:
    place = max_pool_with_indices(input, kernel, stride, padding, dilation, ceil_mode)[1]
    return (_scattered(nd, g, place, input_spec, len(kernel)),)


@implements(_max_backward_composed)
def _max_backward(
    g: Any,
    nd: Any,
    input: Any,
    input_spec: Spec,
    place: Any,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    ceil_mode: bool,
) -> tuple[Any]:
    return (_scattered(nd, g, place, input_spec, len(kernel)),)


def _with_indices_backward(g: Any, nd: Any, out1: Any, input_spec: Spec, kernel: Axes) -> tuple[Any]:
    return (None if g[0] is None else _scattered(nd, g[0], out1, input_spec, len(kernel)),)


# --- adaptive ---------------------------------------------------------------------------------------------------------


def _adaptive_rule(input: Spec, size: Axes) -> tuple[Spec, Spec]:
    name = f"adaptive_max_pool{len(size)}d"
    _refuse(name, input)
    # The three-dimensional kernel of PyTorch is the one that does not keep channels-last.
    memory_format = contiguous_format if len(size) == 3 else suggested_format(input, len(size))
    out = formatted(input, (*input.shape[: -len(size)], *size), memory_format)
    return out, out.like(dtype=int64)


def _adaptive(xp: ModuleType, input: Array, size: Axes) -> tuple[Array, Array]:
    dims = len(size)
    if 0 in size:
        shape = *input.shape[:-dims], *size
        return xp.empty(shape, input.dtype), xp.empty(shape, np.int64)
    image = as_batch(input, dims)
    if any(old % new for old, new in zip(image.shape[2:], size, strict=True)):
        members = tuple(map(adaptive_members, image.shape[2:], size))
        best, place = map(channels_first, max_places(xp, channels_last(image), members))
        return (best, place) if input.ndim == dims + 2 else (best[0], place[0])
    kernel = tuple(old // new for old, new in zip(image.shape[2:], size, strict=True))
    return _with_indices(xp, input, kernel, kernel, (0,) * dims, (1,) * dims, False)


def _adaptive_backward(g: Any, nd: Any, out1: Any, input_spec: Spec, size: Axes) -> tuple[Any]:
    return (None if g[0] is None else _scattered(nd, g[0], out1, input_spec, len(size)),)


# --- scatter and gather -----------------------------------------------------------------------------------------------


def _scattered(nd: Any, g: Any, place: Any, image: Spec, dims: int) -> Any:
    """The gradient of an image from that of its maxima, in the image's memory format."""
    return nd.pool_scatter(g, place, tuple(image.shape[-dims:]), suggested_format(image, dims))


def _scatter_rule(input: Spec, place: Spec, size: Axes, memory_format: MemoryFormat) -> Spec:
    return formatted(input, (*input.shape[: -len(size)], *size), memory_format)


def _scatter(xp: ModuleType, input: Array, place: Array, size: Axes, memory_format: MemoryFormat) -> Array:
    """Zeros (..., size...) with each element of input (..., out...) added at its place in the plane."""
    dims = len(size)
    lead, out = input.shape[:-dims], input.shape[-dims:]
    planes = prod(lead)
    if compiled(xp, input) and input.size:
        from engine.ops.pooling.kernels import max_pool as pool

        if input.ndim == 4 and dims == 2 and memory_format is not contiguous_format:
            rows = np.ascontiguousarray(channels_last(input))
            places = np.ascontiguousarray(channels_last(place), dtype=np.int32)
            return channels_first(pool.max_pool2d_backward(rows, places, (lead[0], *size, lead[1])))
        rows = np.ascontiguousarray(input).reshape(planes, prod(out[:-1]), out[-1])
        places = np.ascontiguousarray(place, dtype=np.int32)
        total = pool.max_pool2d_backward(rows, places, (planes, prod(size[:-1]), size[-1]))
        return total.reshape(*lead, *size)
    total = xp.zeros((planes, prod(size)), input.dtype)
    key = (xp.arange(planes)[:, None], place.reshape(planes, prod(out)))
    combine_at(xp, "add", total, key, input.reshape(planes, prod(out)))
    total = total.reshape(*lead, *size)
    if memory_format is contiguous_format:
        return total
    return channels_first(xp.ascontiguousarray(channels_last(total)))


def _gather(xp: ModuleType, input: Array, place: Array, size: Axes) -> Array:
    lead, out = place.shape[: -len(size)], place.shape[-len(size) :]
    rows = input.reshape(prod(lead), prod(size))
    found = xp.take_along_axis(rows, place.reshape(prod(lead), prod(out)).astype(np.int64, copy=False), 1)
    return found.reshape(place.shape)


MAX_POOL = define(
    "max_pool",
    rule=_max_rule,
    forward=_max_pool,
    backward=_max_backward,
    attributes="kernel stride padding dilation ceil_mode",
    residuals="place",
)
MAX_POOL_WITH_INDICES = define(
    "max_pool_with_indices",
    rule=_with_indices_rule,
    forward=_with_indices,
    backward=_with_indices_backward,
    attributes="kernel stride padding dilation ceil_mode",
    outputs=2,
)
ADAPTIVE_MAX_POOL = define(
    "adaptive_max_pool",
    rule=_adaptive_rule,
    forward=_adaptive,
    backward=_adaptive_backward,
    attributes="size",
    outputs=2,
)
POOL_SCATTER = define(
    "pool_scatter",
    rule=_scatter_rule,
    forward=_scatter,
    backward=(lambda g, nd, place, size: nd.pool_gather(g, place, size), None),
    inputs="input place",
    attributes="size memory_format",
)
POOL_GATHER = define(
    "pool_gather",
    rule=lambda input, place, size: formatted(input, place.shape, suggested_format(input, len(size))),
    forward=_gather,
    backward=(lambda g, nd, place, input_spec, size: _scattered(nd, g, place, input_spec, len(size)), None),
    inputs="input place",
    attributes="size",
)


def max_pool(input: Tensor, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, ceil_mode: bool) -> Tensor:
    """Maximum of each window, arguments in canonical form; `max_pool2d` is the public function."""
    return apply(MAX_POOL, (input,), (kernel, stride, padding, dilation, ceil_mode))


def max_pool_with_indices(
    input: Tensor, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    """The same with the int64 flat position of each maximum in its plane."""
    return apply(MAX_POOL_WITH_INDICES, (input,), (kernel, stride, padding, dilation, ceil_mode))


def adaptive_max_pool(input: Tensor, size: Axes) -> tuple[Tensor, Tensor]:
    """Maxima, and their positions, of as many windows as `size` says."""
    return apply(ADAPTIVE_MAX_POOL, (input,), (size,))


def pool_scatter(input: Tensor, place: Tensor, size: Axes, memory_format: MemoryFormat) -> Tensor:
    """Zeros (..., size...) with each element of input added at its flat position `place`."""
    return apply(POOL_SCATTER, (input, place), (size, memory_format))


def pool_gather(input: Tensor, place: Tensor, size: Axes) -> Tensor:
    """The elements of input (..., size...) at the flat positions `place`; the adjoint of `pool_scatter`."""
    return apply(POOL_GATHER, (input, place), (size,))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def _max_pool_cuda_as(kind: Any, xp: ModuleType, input: Array, kernel: Axes, *window: Any) -> tuple[Array, Array]:
    """Maxima, and their positions in the dtype `kind`."""
    if not input.size or not served(input):
        best, place = _max_pool(xp, input, kernel, *window)
        return best, place.astype(kind, copy=False)
    from engine.ops.pooling import cuda as pool

    stride, padding, dilation, ceil_mode = window
    dims = len(kernel)
    out = pooled_shape(f"max_pool{dims}d", input.shape, kernel, stride, padding, dilation, ceil_mode)
    windows = pool.windows_of(input.shape[-dims:], out, kernel, stride, padding, dilation)
    return _fused_maxima(kind, xp, input, dims, windows)


def _fused_maxima(kind: Any, xp: ModuleType, input: Array, dims: int, windows: Any) -> tuple[Array, Array]:
    from engine.ops.pooling import cuda as pool

    image = as_batch(input, dims)
    as_channels_last = lies_channels_last(image)
    found = pool.max_pool_forward(to_pool(xp, image, as_channels_last), windows)
    best, place = (from_pool(each, input.shape, as_channels_last) for each in found)
    return best, place.astype(kind, copy=False)


@MAX_POOL.kernel("cuda")
def _max_pool_cuda(xp: ModuleType, input: Array, *window: Any) -> tuple[Array, Array]:
    return _max_pool_cuda_as(np.int32, xp, input, *window)


@MAX_POOL_WITH_INDICES.kernel("cuda")
def _with_indices_cuda(xp: ModuleType, input: Array, *window: Any) -> tuple[Array, Array]:
    return _max_pool_cuda_as(np.int64, xp, input, *window)


@ADAPTIVE_MAX_POOL.kernel("cuda")
def _adaptive_cuda(xp: ModuleType, input: Array, size: Axes) -> tuple[Array, Array]:
    if not input.size or 0 in size or not served(input):
        return _adaptive(xp, input, size)
    from engine.ops.pooling import cuda as pool

    dims = len(size)
    return _fused_maxima(np.int64, xp, input, dims, pool.windows_of(input.shape[-dims:], size))


def _gathered(nd: Any, g: Any, place: Any, spec: Spec, dims: int, *window: Axes) -> Any:
    """The gradient of an image from that of its maxima, window by window; of adaptive windows without `window`."""
    from engine.ops.pooling import cuda as pool

    xp = nd.xp
    windows = pool.windows_of(tuple(spec.shape[-dims:]), g.shape[-dims:], *window)
    as_channels_last = suggested_format(spec, dims) is not contiguous_format
    slope, place = (
        to_pool(xp, as_batch(each, dims), as_channels_last) for each in (g, place.astype(np.int32, copy=False))
    )
    return from_pool(pool.max_pool_backward(slope, place, windows), tuple(spec.shape), as_channels_last)


@implements(_max_backward_composed)
def _max_backward_cuda(
    g: Any,
    nd: Any,
    input: Any,
    input_spec: Spec,
    place: Any,
    kernel: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
    ceil_mode: bool,
) -> tuple[Any]:
    window = (kernel, stride, padding, dilation)
    if not g.size or not served(g):
        return _max_backward(g, nd, input, input_spec, place, *window, ceil_mode)
    return (_gathered(nd, g, place, input_spec, len(kernel), *window),)


@implements(_with_indices_backward)
def _with_indices_backward_cuda(
    g: Any, nd: Any, out1: Any, input_spec: Spec, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes
) -> tuple[Any]:
    if g[0] is None or not g[0].size or not served(g[0]):
        return _with_indices_backward(g, nd, out1, input_spec, kernel)
    return (_gathered(nd, g[0], out1, input_spec, len(kernel), kernel, stride, padding, dilation),)


@implements(_adaptive_backward)
def _adaptive_backward_cuda(g: Any, nd: Any, out1: Any, input_spec: Spec, size: Axes) -> tuple[Any]:
    if g[0] is None or not g[0].size or not served(g[0]):
        return _adaptive_backward(g, nd, out1, input_spec, size)
    return (_gathered(nd, g[0], out1, input_spec, len(size)),)


MAX_POOL.derivative("cuda", _max_backward_cuda)
MAX_POOL_WITH_INDICES.derivative("cuda", _with_indices_backward_cuda)
ADAPTIVE_MAX_POOL.derivative("cuda", _adaptive_backward_cuda)
