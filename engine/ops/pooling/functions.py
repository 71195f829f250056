"""The public pooling functions: arguments in canonical form, one family a window kind.

Source: torch.nn.functional (pooling functions).
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

from engine.calls.listening import heard
from engine.ops.pooling.avg_pool import avg_pool
from engine.ops.pooling.max_pool import adaptive_bounds, adaptive_max_pool, max_pool, max_pool_with_indices
from engine.ops.resample.operator import AxisMap, resample, windowed_mean
from engine.ops.shared.windows import Axes, Sizes, sizes, suggested_format
from engine.rules.layout import contiguous_format
from engine.tensor import Tensor


def _check(name: str, input: Tensor, dims: int) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    if input.ndim not in (dims + 1, dims + 2):
        raise RuntimeError(
            f"{name}: Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input, but got input of size: "
            f"{list(input.shape)}"
        )


def _max_pool(dims: int, indices: bool) -> Any:
    name = f"max_pool{dims}d"
    run = max_pool_with_indices if indices else max_pool

    def pool(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> Any:
        _check(name, input, dims)
        kernel = sizes(name, "kernel_size", kernel_size, dims)
        step = kernel if stride is None or stride == () or stride == [] else sizes(name, "stride", stride, dims)
        window = (kernel, step, sizes(name, "padding", padding, dims), sizes(name, "dilation", dilation, dims))
        return run(input, *window, bool(ceil_mode))

    pool.__name__ = pool.__qualname__ = f"{name}_with_indices" if indices else name
    pool.__doc__ = f"""Maximum of each window of (N, C, d...) or (C, d...), {dims} spatial axes; padding never wins.

    {"Returns (maxima, int64 flat positions in the plane)." if indices else "The stride is the kernel size by default."}
    Raises: RuntimeError for windows that do not fit. Source: torch.nn.functional.{name}.
    """
    return heard(pool)


max_pool1d, max_pool2d, max_pool3d = (_max_pool(dims, False) for dims in (1, 2, 3))
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    _max_pool(dims, True) for dims in (1, 2, 3)
)


def _avg_pool(dims: int) -> Callable[..., Tensor]:
    name = f"avg_pool{dims}d"

    def pool(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        _check(name, input, dims)
        kernel = sizes(name, "kernel_size", kernel_size, dims)
        step = kernel if stride is None or stride == () or stride == [] else sizes(name, "stride", stride, dims)
        margin = sizes(name, "padding", padding, dims)
        return avg_pool(input, kernel, step, margin, bool(ceil_mode), bool(count_include_pad), divisor_override)

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""Mean of each window of (N, C, d...) or (C, d...), {dims} spatial axes.

    Divides by the window's size, or without `count_include_pad` by the number of elements inside the image, or by
    `divisor_override`. Raises: RuntimeError for windows that do not fit. Source: torch.nn.functional.{name}.
    """
    return heard(pool)


avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(dims) for dims in (1, 2, 3))


@lru_cache(1024)
def _adaptive_average(size: int, out: int) -> AxisMap:
    begin, end = adaptive_bounds(size, out)
    return windowed_mean(size, begin, end, end - begin)


def _target(name: str, input: Tensor, output_size: Any, dims: int) -> Axes:
    """The output size with None replaced by the input's. Raises: ValueError, RuntimeError, TypeError naming the
    operator.
    """
    if isinstance(output_size, list | tuple) and isinstance(input, Tensor) and input.ndim <= len(output_size):
        raise ValueError(f"{name}: Input dimension should be at least {len(output_size) + 1}, got {list(input.shape)}")
    _check(name, input, dims)
    given = tuple(output_size) if isinstance(output_size, list | tuple) else (output_size,) * dims
    if len(given) != dims:
        raise RuntimeError(f"{name}: output_size must have {dims} elements, got {list(given)}")
    spatial = input.shape[-dims:]
    target = sizes(
        name, "output_size", [old if new is None else new for old, new in zip(spatial, given, strict=True)], dims
    )
    if any(new < 0 for new in target):
        raise RuntimeError(f"{name}: elements of output_size must be greater than or equal to 0, got {list(target)}")
    if 0 in input.shape[input.ndim - dims - 1 :]:
        raise RuntimeError(f"{name}: Expected an input with non-zero sizes but for the batch, got {list(input.shape)}")
    return target


def _adaptive_avg_pool(dims: int) -> Callable[..., Tensor]:
    name = f"adaptive_avg_pool{dims}d"

    def pool(input: Tensor, output_size: Any) -> Tensor:
        target = _target(name, input, output_size, dims)
        if not input.dtype.is_floating_point:
            raise NotImplementedError(
                f"{name}: expected a floating point input, got {input.dtype}; convert it with .float()"
            )
        if prod(target) and not any(old % new for old, new in zip(input.shape[-dims:], target, strict=True)):
            kernel = tuple(old // new for old, new in zip(input.shape[-dims:], target, strict=True))
            return avg_pool(input, kernel, kernel, (0,) * dims, False, True, None)
        memory_format = contiguous_format if dims == 3 else suggested_format(input._spec, dims)
        return resample(input, tuple(map(_adaptive_average, input.shape[-dims:], target)), memory_format)

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"""Means of windows chosen so that the result has `output_size`; None keeps an axis.

    Window i of n over an axis of size s is [floor(i s / n), ceil((i + 1) s / n)). Source: torch.nn.functional.{name}.
    """
    return heard(pool)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_adaptive_avg_pool(dims) for dims in (1, 2, 3))


def _adaptive_max_pool(dims: int, indices: bool) -> Any:
    name = f"adaptive_max_pool{dims}d"

    def pool(input: Tensor, output_size: Any) -> Any:
        found = adaptive_max_pool(input, _target(name, input, output_size, dims))
        return found if indices else found[0]

    pool.__name__ = pool.__qualname__ = f"{name}_with_indices" if indices else name
    pool.__doc__ = (
        f"Maxima of the windows of `adaptive_avg_pool{dims}d`{' and their flat positions' if indices else ''}."
    )
    return heard(pool)


adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_adaptive_max_pool(dims, False) for dims in (1, 2, 3))
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = (
    _adaptive_max_pool(dims, True) for dims in (1, 2, 3)
)
