"""Axes and sizes in canonical form: negative axes wrapped, ranges checked, duplicates refused."""

from collections.abc import Sequence
from operator import index
from typing import Any


def wrap_dim(dim: int, ndim: int, name: str = "") -> int:
    """`dim` counted from the front. A 0-dim tensor accepts -1 and 0, as in PyTorch.

    Raises: IndexError naming the allowed range (and the operator, when given).
    """
    size = ndim or 1
    dim = index(dim)
    if not -size <= dim < size:
        where = f"{name}: " if name else ""
        raise IndexError(
            f"{where}Dimension out of range (expected to be in range of [{-size}, {size - 1}], but got {dim})"
        )
    return dim + size if dim < 0 else dim


def wrap_dims(dims: "int | Sequence[int] | None", ndim: int, name: str = "") -> tuple[int, ...]:
    """Canonical axes in ascending order; None and an empty sequence mean all of them.

    Raises: IndexError for an axis out of range; RuntimeError for one that is named twice.
    """
    if dims is None:
        return tuple(range(ndim))
    if isinstance(dims, Sequence):
        if not dims:
            return tuple(range(ndim))
        wrapped = sorted(wrap_dim(dim, ndim, name) for dim in dims)
        if len(set(wrapped)) < len(wrapped):
            twice = next(dim for dim in wrapped if wrapped.count(dim) > 1)
            raise RuntimeError(
                f"{name or 'reduction'}: dim {twice} appears multiple times in the list of dims {list(dims)}"
            )
        return tuple(wrapped) if ndim else ()
    return (wrap_dim(dims, ndim, name),) if ndim else (wrap_dim(dims, 0, name),)[:0]


def shape_from(size: tuple[Any, ...], name: str) -> tuple[int, ...]:
    """`f(2, 3)` and `f((2, 3))` alike.

    Raises: RuntimeError for a negative size; TypeError for anything that is no integer.
    """
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = tuple(size[0])
    try:
        shape = tuple(n.__index__() for n in size)
    except AttributeError:
        raise TypeError(f"{name}(): sizes must be integers, got {size!r}") from None
    if len(shape) > 64:  # NumPy's limit, and PyTorch's
        raise RuntimeError(f"{name}: only tensors with up to 64 dims are supported, got {len(shape)} sizes")
    if any(n < 0 for n in shape):
        raise RuntimeError(f"{name}: Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return shape
