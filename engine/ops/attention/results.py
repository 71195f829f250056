"""Memory for attention's results, laid out as PyTorch lays them out. empty: makes an array of a shape and a dtype, as
`numpy.empty` does.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from engine.rules import layout
from engine.rules.dtypes import of_numpy
from engine.rules.spec import spec_of

Array = Any
Axes = tuple[int, ...]
Empty = Callable[[Axes, Any], Array]


def like_query(empty: Empty, query: Array, shape: Axes, kept: Array) -> Array:
    """For the result, in the layout of the operator's rule."""
    if query.ndim != 4 or kept is not None or query.shape != shape:
        return empty(shape, query.dtype)
    sizes, axes = _allocation(shape, query.strides, query.dtype)
    memory = empty(sizes, query.dtype)
    return memory if axes is None else memory.transpose(axes)


@lru_cache(4096)
def _allocation(shape: Axes, strides: Axes, dtype: Any) -> Any:
    steps = tuple(step // dtype.itemsize for step in strides)
    stride = layout.preserve_strides(shape, steps) if steps[-1] == 1 else None
    return spec_of(shape, stride, of_numpy(dtype)).allocation


def positions_first(empty: Empty, shape: Axes, dtype: Any) -> Array:
    """For the gradient of a (..., heads, positions, width) operand: positions outside heads."""
    if len(shape) < 3:
        return empty(shape, dtype)
    return empty((*shape[:-3], shape[-2], shape[-3], shape[-1]), dtype).swapaxes(-2, -3)
