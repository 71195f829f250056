"""Pooling: thin wrappers over the primitives, unpooling and power-average pooling."""

from collections.abc import Sequence
from typing import Any

import engine
from engine import ops
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
    return max_pool


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


def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window of (N, C, H, W) or (C, H, W)."""
    return ops.avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window of (N, C, D, H, W) or (C, D, H, W)."""
    return ops.avg_pool3d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Mean of windows chosen so that the output has `output_size`."""
    return ops.adaptive_avg_pool1d(input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Mean of windows chosen so that the output has `output_size`; None keeps an axis."""
    return ops.adaptive_avg_pool2d(input, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """Mean of windows chosen so that the output has `output_size`; None keeps an axis."""
    return ops.adaptive_avg_pool3d(input, output_size)


def _adaptive_max_pool(name: str) -> Any:
    def adaptive_max_pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        return getattr(ops, f"{name}_with_indices" if return_indices else name)(input, output_size)

    adaptive_max_pool.__name__ = adaptive_max_pool.__qualname__ = name
    adaptive_max_pool.__doc__ = "Maximum of windows chosen so that the output has `output_size`; None keeps an axis."
    return adaptive_max_pool


adaptive_max_pool1d = _adaptive_max_pool("adaptive_max_pool1d")
adaptive_max_pool2d = _adaptive_max_pool("adaptive_max_pool2d")
adaptive_max_pool3d = _adaptive_max_pool("adaptive_max_pool3d")


def _lp_pool(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool, dims: int
) -> Tensor:
    sizes = _sizes(kernel_size, dims)
    if abs(norm_type) == float("inf"):
        sign = 1 if norm_type > 0 else -1
        return (max_pool1d, max_pool2d, max_pool3d)[dims - 1](input.abs() * sign, sizes, stride, 0, 1, ceil_mode) * sign
    out = (avg_pool1d, avg_pool2d, avg_pool3d)[dims - 1](input**norm_type, sizes, stride, 0, ceil_mode)
    window = 1
    for size in sizes:
        window *= size
    return (out.sign() * ops.relu(out.abs()) * window) ** (1.0 / norm_type)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ x^p)^(1/p) of each window."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 1)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ x^p)^(1/p) of each window."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 2)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """(Σ x^p)^(1/p) of each window."""
    return _lp_pool(input, norm_type, kernel_size, stride, ceil_mode, 3)


def _max_unpool(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
    dims: int,
) -> Tensor:
    kernel = _sizes(kernel_size, dims)
    step = kernel if stride is None else _sizes(stride, dims)
    margin = _sizes(padding, dims)
    spatial = input.shape[-dims:]
    default = tuple((spatial[at] - 1) * step[at] + kernel[at] - 2 * margin[at] for at in range(dims))
    size = default
    if output_size is not None:
        if len(output_size) not in (dims, dims + 2):
            raise ValueError(
                f"output_size should be a sequence containing {dims} or {dims + 2} elements, but it has a length of "
                f"'{len(output_size)}'"
            )
        size = tuple(output_size)[-dims:]
        for at in range(dims):
            if not default[at] - step[at] < size[at] < default[at] + step[at]:
                raise ValueError(
                    f'invalid output_size "{output_size}" (dim {at} must be between {default[at] - step[at]} and '
                    f"{default[at] + step[at]})"
                )
    if indices.shape != input.shape:
        raise RuntimeError(f"Expected shape of indices to be: {list(input.shape)} but got: {list(indices.shape)}")
    elements = 1
    for each in size:
        elements *= each
    outer = tuple(input.shape[:-dims])
    flat = engine.zeros(*outer, elements, dtype=input.dtype, device=input.device)
    return flat.scatter(-1, indices.reshape(*outer, -1), input.reshape(*outer, -1)).reshape(*outer, *size)


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts values back where `max_pool1d` found them, zeros elsewhere."""
    return _max_unpool(input, indices, kernel_size, stride, padding, output_size, 1)


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts values back where `max_pool2d` found them, zeros elsewhere."""
    return _max_unpool(input, indices, kernel_size, stride, padding, output_size, 2)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts values back where `max_pool3d` found them, zeros elsewhere."""
    return _max_unpool(input, indices, kernel_size, stride, padding, output_size, 3)
