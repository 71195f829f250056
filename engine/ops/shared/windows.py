"""Where sliding windows fall: argument forms, output sizes and patches, shared by convolution, pooling and im2col."""

from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from engine.rules import layout
from engine.rules.layout import MemoryFormat, contiguous_format
from engine.rules.spec import Spec

Sizes = int | Sequence[int]
Axes = tuple[int, ...]


class ConvWindow(NamedTuple):
    """How a convolution's kernel moves: one number a spatial axis each, and the number of channel groups."""

    stride: Axes
    padding: Axes
    dilation: Axes
    groups: int

    @lru_cache(4096)  # noqa: B019 - of tuples that compare by value
    def positions(self, size: Axes, kernel: Axes) -> Axes:
        """The spatial shape of the result for an image of `size`."""
        return tuple(map(output_size, size, kernel, self.stride, self.padding, self.dilation))

    def spread(self, kernel: Axes) -> Axes:
        """The extent of a kernel with its gaps."""
        return tuple(by * (size - 1) + 1 for by, size in zip(self.dilation, kernel, strict=True))

    def in_two_dimensions(self) -> "ConvWindow":
        """The window on (N, C, 1, L) that a one-dimensional one is on (N, C, L)."""
        if len(self.stride) == 2:
            return self
        return ConvWindow((1, *self.stride), (0, *self.padding), (1, *self.dilation), self.groups)


def sizes(name: str, argument: str, value: Sizes, dims: int) -> tuple[int, ...]:
    """One integer a spatial axis: `value` itself, or a single number for all.

    Raises: TypeError for what is no integer, RuntimeError for a wrong number of them.
    """
    if type(value) is int:
        return (value,) * dims
    if type(value) is tuple and len(value) == dims and all(type(entry) is int for entry in value):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        given = tuple(value)
        if len(given) == 1:
            given *= dims
        if all(isinstance(entry, int) for entry in given):
            if len(given) != dims:
                raise RuntimeError(
                    f"{name}: {argument} must be a single int or a sequence of {dims} ints, got {list(given)}"
                )
            return tuple(int(entry) for entry in given)
    elif hasattr(value, "__index__"):
        return (value.__index__(),) * dims
    raise TypeError(f"{name}: {argument} must be an int or a sequence of {dims} ints, got {value!r}")


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Number of positions of a window along one axis."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """The same for pooling (aten/src/ATen/native/Pool.h).

    With `ceil_mode` the last window may reach out, but must begin inside the image or its left padding.
    """
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


@lru_cache(4096)
def pooled_shape(
    name: str, shape: Axes, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, ceil_mode: bool
) -> Axes:
    """Spatial shape of a pooled (N, C, d...) or (C, d...).

    Raises: RuntimeError naming the operator for windows that cannot be.
    """
    dims = len(kernel)
    for values, what in ((kernel, "kernel size"), (stride, "stride"), (dilation, "dilation")):
        if any(value <= 0 for value in values):
            raise RuntimeError(f"{name}: {what} should be greater than zero, but got {list(values)}")
    if any(pad < 0 for pad in padding):
        raise RuntimeError(f"{name}: pad must be non-negative, but got pad: {list(padding)}")
    if any(pad > (by * (size - 1) + 1) // 2 for pad, size, by in zip(padding, kernel, dilation, strict=True)):
        raise RuntimeError(
            f"{name}: pad should be at most half of effective kernel size, but got pad={list(padding)}, "
            f"kernel_size={list(kernel)} and dilation={list(dilation)}"
        )
    if 0 in shape[len(shape) - dims - 1 :]:
        raise RuntimeError(f"{name}: Expected an input with non-zero sizes but for the batch, got {list(shape)}")
    out = tuple(
        pooled_size(size, window, step, pad, by, ceil_mode)
        for size, window, step, pad, by in zip(shape[-dims:], kernel, stride, padding, dilation, strict=True)
    )
    if any(size < 1 for size in out):
        channels = shape[-dims - 1]
        raise RuntimeError(
            f"{name}: Given input size: {tuple(shape[-dims - 1 :])}. Calculated output size: {(channels, *out)}. "
            "Output size is too small"
        )
    return out


def suggested_format(spec: Spec, dims: int = 2) -> MemoryFormat:
    """The memory format that an operator carries on from this input (at::TensorBase::suggest_memory_format).

    One-dimensional operators (`dims=1`) are PyTorch's two-dimensional ones on (N, C, 1, L): a permuted (N, C, L) may
    then be channels-last, and so is the result.
    """
    shape: Axes = spec.shape
    stride = spec.stride
    if dims == 1 and spec.ndim == 3:
        shape, stride = (*shape[:2], 1, shape[2]), (*stride[:2], shape[2] * stride[2], stride[2])
    return layout.suggest_memory_format(shape, stride)


def formatted(spec: Spec, shape: tuple[int, ...], memory_format: MemoryFormat) -> Spec:
    """A result of `shape` in a memory format, (N, C, L) as a channels-last (N, C, 1, L)."""
    if memory_format is contiguous_format:
        return spec.like(shape=shape)
    if len(shape) == 3:
        strides = layout.strides_for_format((*shape[:2], 1, shape[2]), memory_format)
        return spec.like(shape=shape, stride=(*strides[:2], strides[3]))
    return spec.like(shape=shape, stride=layout.strides_for_format(shape, memory_format))


def channels_last(array: Any) -> Any:
    """(N, C, d...) as a view (N, d..., C)."""
    return array.transpose(0, *range(2, array.ndim), 1)


def channels_first(array: Any) -> Any:
    """(N, d..., C) as a view (N, C, d...)."""
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1))


def compiled(xp: ModuleType, array: Any) -> bool:
    """Whether the compiled kernels of engine.kernels serve this array."""
    return xp is np and array.dtype.char in "fd"


def lies_channels_last(array: Any) -> bool:
    """Whether (N, C, d...) is channels-last in memory and not row-major as well."""
    return not array.flags.c_contiguous and channels_last(array).flags.c_contiguous


def as_batch(array: Any, dims: int) -> Any:
    """(C, d...) or (N, C, d...) as (N, C, d...)."""
    return array[None] if array.ndim == dims + 1 else array


def padded(xp: ModuleType, array: Any, padding: tuple[int, ...], after: tuple[int, ...], value: Any = 0) -> Any:
    """(N, d..., C) with `padding` before and `after` behind each spatial axis."""
    if not any(padding) and not any(after):
        return array
    spatial = array.shape[1:-1]
    shape = [size + a + b for size, a, b in zip(spatial, padding, after, strict=True)]
    out = xp.full((array.shape[0], *shape, array.shape[-1]), value, array.dtype)
    out[(slice(None), *(slice(a, a + size) for a, size in zip(padding, spatial, strict=True)))] = array
    return out


def patches(
    xp: ModuleType,
    array: Any,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    out: tuple[int, ...],
) -> Any:
    """View (N, out..., kernel..., C) of an array (N, d..., C) that the windows do not leave."""
    steps = array.strides
    spatial = tuple(step * by for step, by in zip(steps[1:-1], stride, strict=True))
    inside = tuple(step * by for step, by in zip(steps[1:-1], dilation, strict=True))
    shape = (array.shape[0], *out, *kernel, array.shape[-1])
    return xp.lib.stride_tricks.as_strided(array, shape, (steps[0], *spatial, *inside, steps[-1]))
