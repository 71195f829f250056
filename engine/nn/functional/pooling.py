"""Pooling that has another signature here than in `engine.ops`, unpooling, and power-average pooling."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import engine
from engine import ops
from engine.calls.listening import heard
from engine.ops.shared.windows import suggested_format
from engine.tensor import Tensor

Sizes = int | Sequence[int]


def _sizes(value: Sizes, dims: int) -> tuple[int, ...]:
    """One size for each spatial axis."""
    return (value,) * dims if isinstance(value, int) else tuple(value)


def _max_pool(name: str) -> Any:
    def max_pool(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        function = getattr(ops, f"{name}_with_indices" if return_indices else name)
        return function(input, kernel_size, stride, padding, dilation, ceil_mode)

    max_pool.__name__ = max_pool.__qualname__ = name
    max_pool.__doc__ = "Maximum of each window (and its flat spatial index, with `return_indices`)."
    return heard(max_pool)


max_pool1d = _max_pool("max_pool1d")
max_pool2d = _max_pool("max_pool2d")
max_pool3d = _max_pool("max_pool3d")


def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Mean of each window of (N, C, L) or (C, L)."""
    return ops.avg_pool1d(input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def _adaptive_max_pool(name: str) -> Any:
    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        return getattr(ops, f"{name}_with_indices" if return_indices else name)(input, output_size)

    adaptive_max_pool.__name__ = adaptive_max_pool.__qualname__ = name
    adaptive_max_pool.__doc__ = "Maximum of windows chosen so that the output has `output_size`; None keeps an axis."
    return heard(adaptive_max_pool)


adaptive_max_pool1d = _adaptive_max_pool("adaptive_max_pool1d")
adaptive_max_pool2d = _adaptive_max_pool("adaptive_max_pool2d")
adaptive_max_pool3d = _adaptive_max_pool("adaptive_max_pool3d")


def _lp_pool(dims: int) -> Callable[..., Tensor]:
    largest = (max_pool1d, max_pool2d, max_pool3d)[dims - 1]
    average = (avg_pool1d, ops.avg_pool2d, ops.avg_pool3d)[dims - 1]

    def lp_pool(
        input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> Tensor:
        sizes = _sizes(kernel_size, dims)
        if abs(norm_type) == float("inf"):
            sign = 1 if norm_type > 0 else -1
            return largest(input.abs() * sign, sizes, stride, 0, 1, ceil_mode) * sign
        out = average(input**norm_type, sizes, stride, 0, ceil_mode)
        return (out.sign() * ops.relu(out.abs()) * prod(sizes)) ** (1.0 / norm_type)

    lp_pool.__name__ = lp_pool.__qualname__ = f"lp_pool{dims}d"
    lp_pool.__doc__ = "(Σ x^p)^(1/p) of each window."
    return heard(lp_pool)


lp_pool1d, lp_pool2d, lp_pool3d = _lp_pool(1), _lp_pool(2), _lp_pool(3)


def _max_unpool(dims: int) -> Callable[..., Tensor]:
    def max_unpool(
        input: Tensor,
        indices: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        output_size: Sequence[int] | None = None,
    ) -> Tensor:
        kernel, margin = _sizes(kernel_size, dims), _sizes(padding, dims)
        step = kernel if stride is None else _sizes(stride, dims)
        size = tuple(
            (old - 1) * by + window - 2 * before
            for old, by, window, before in zip(input.shape[-dims:], step, kernel, margin, strict=True)
        )
        if output_size is not None:
            size = _unpooled_size(output_size, size, step)
        if indices.shape != input.shape:
            raise RuntimeError(f"Expected shape of indices to be: {list(input.shape)} but got: {list(indices.shape)}")
        outer = tuple(input.shape[:-dims])
        flat = engine.zeros(*outer, prod(size), dtype=input.dtype, device=input.device)
        back = flat.scatter(-1, indices.reshape(*outer, -1), input.reshape(*outer, -1)).reshape(*outer, *size)
        return back.contiguous(memory_format=suggested_format(input._spec)) if dims == 2 else back

    max_unpool.__name__ = max_unpool.__qualname__ = f"max_unpool{dims}d"
    max_unpool.__doc__ = f"Puts values back where `max_pool{dims}d` found them, zeros elsewhere."
    return heard(max_unpool)


def _unpooled_size(output_size: Sequence[int], default: tuple[int, ...], step: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial part of `output_size`. Raises ValueError where pooling it does not give the input."""
    dims = len(default)
    if len(output_size) not in (dims, dims + 2):
        raise ValueError(
            f"output_size should be a sequence containing {dims} or {dims + 2} elements, but it has a length of "
            f"'{len(output_size)}'"
        )
    size = tuple(output_size)[-dims:]
    for at in range(dims):
        low, high = default[at] - step[at], default[at] + step[at]
        if not low < size[at] < high:
            raise ValueError(f'invalid output_size "{output_size}" (dim {at} must be between {low} and {high})')
    return size


max_unpool1d, max_unpool2d, max_unpool3d = _max_unpool(1), _max_unpool(2), _max_unpool(3)


def _with_indices(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    def with_indices(input: Tensor, *args: Any, return_indices: bool = True, **options: Any) -> tuple[Tensor, Tensor]:
        return function(input, *args, return_indices=True, **options)

    with_indices.__name__ = with_indices.__qualname__ = f"{function.__name__}_with_indices"
    with_indices.__doc__ = f"`{function.__name__}` and the places of the maxima."
    return with_indices


max_pool1d_with_indices = _with_indices(max_pool1d)
max_pool2d_with_indices = _with_indices(max_pool2d)
max_pool3d_with_indices = _with_indices(max_pool3d)
adaptive_max_pool1d_with_indices = _with_indices(adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = _with_indices(adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = _with_indices(adaptive_max_pool3d)
