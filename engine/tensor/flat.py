"""One-dimensional views of dense memory: what optimizers, clipping and the wire walk over."""

from functools import lru_cache
from typing import Any

import numpy as np

from engine.rules import layout
from engine.rules.spec import Spec
from engine.tensor import Tensor


@lru_cache(65536)
def _slowest_first(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of axes in which a dense layout is row-major; None if it already is."""
    if layout.is_contiguous(shape, stride):
        return None
    return tuple(reversed(layout.permutation(shape, (stride,))))


def flat_array(array: Any, spec: Spec) -> Any:
    """A 1-D view of `array` in memory order; None unless `spec` is non-overlapping and dense."""
    if spec.contiguous:
        return array.reshape(-1)
    if not spec.dense:
        return None
    order = _slowest_first(spec.shape, spec.stride)
    return array.reshape(-1) if order is None else array.transpose(order).reshape(-1)


def flat_view(tensor: Tensor) -> Any:
    """A 1-D array on the memory of `tensor`, in memory order; None unless it is non-overlapping and dense."""
    return flat_array(tensor._array, tensor._spec)


def unflattened(flat: np.ndarray, spec: Spec) -> Any:
    """The inverse of `flat_array`: a view of a 1-D array of `spec.numel` elements, laid out by a dense `spec`."""
    order = _slowest_first(spec.shape, spec.stride)
    if order is None:
        return flat.reshape(spec.shape)
    return flat.reshape([spec.shape[axis] for axis in order]).transpose(
        [order.index(axis) for axis in range(len(order))]
    )
