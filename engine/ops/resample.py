"""Separable linear maps along the spatial axes: adaptive averages and every kind of interpolation are one operator.

A map of one axis (`AxisMap`) gives each new element as a weighted sum of a few old ones; `resample` applies one an axis. Its
derivative is `resample` with the adjoint maps.
"""

from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

from engine.dispatch import apply, define
from engine.layout import MemoryFormat
from engine.ops.windows import Axes, channels_first, channels_last, formatted, lies_channels_last
from engine.spec import Spec
from engine.tensor import Tensor

Array = Any


class AxisMap:
    """new[i] = sum over k of weights[k, i] * old[indices[k, i]], along one axis. Compared by identity: make one a shape and keep it.

    Attributes: size (of the old axis), indices (K, new) int64, weights (K, new) float64 or None where all are 1.
    """

    def __init__(self, size: int, indices: Array, weights: Array | None) -> None:
        self.size = size
        self.indices = indices
        self.weights = None if weights is None or bool((weights == 1).all()) else weights
        self.out = indices.shape[1]

    @cached_property
    def identity(self) -> bool:
        """Whether the map changes nothing."""
        return self.weights is None and self.size == self.out and bool((self.indices == np.arange(self.size)).all())

    @cached_property
    def blocks(self) -> float | None:
        """The common weight if the new elements are sums of equal blocks of the old axis, in order; else None."""
        if self.size != self.indices.size or not self.size:
            return None
        weights = np.ones(1) if self.weights is None else self.weights
        in_order = bool((self.indices.T.reshape(-1) == np.arange(self.size)).all())
        return float(weights.flat[0]) if in_order and bool((weights == weights.flat[0]).all()) else None

    @cached_property
    def adjoint(self) -> "AxisMap":
        """The transposed map, from the new axis to the old one."""
        entries: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for k in range(len(self.indices)):
            for i in range(self.out):
                weight = 1.0 if self.weights is None else float(self.weights[k, i])
                if weight:
                    entries[int(self.indices[k, i])].append((i, weight))
        longest = max(map(len, entries), default=0)
        indices = np.zeros((longest, self.size), np.int64)
        weights = np.zeros((longest, self.size))
        for place, found in enumerate(entries):
            for k, (i, weight) in enumerate(sorted(found)):
                indices[k, place], weights[k, place] = i, weight
        adjoint = AxisMap(self.out, indices, weights)
        adjoint.adjoint = self  # type: ignore[misc]
        return adjoint


def interned(size: int, indices: Array, weights: Array | None) -> AxisMap:
    """An AxisMap from arrays of any integer and floating dtype."""
    return AxisMap(size, np.ascontiguousarray(indices, np.int64), None if weights is None else np.asarray(weights, float))


def separable(xp: ModuleType, array: Array, maps: Sequence[AxisMap]) -> Array:
    """`maps` applied to the last axes of an array, those that shrink it most first."""
    if array.ndim == len(maps) + 2 and lies_channels_last(array):
        return channels_first(_separable(xp, channels_last(array), maps, 1))
    return _separable(xp, array, maps, array.ndim - len(maps))


def _separable(xp: ModuleType, array: Array, maps: Sequence[AxisMap], first: int) -> Array:
    half = array.dtype.itemsize < 4 and array.dtype.kind not in "iub"
    value = array.astype(xp.float32) if half and any(one.weights is not None or len(one.indices) > 1 for one in maps) else array
    for at in sorted(range(len(maps)), key=lambda at: maps[at].out / max(maps[at].size, 1)):
        if not maps[at].identity:
            value = _along(xp, value, first + at, maps[at])
    return value.astype(array.dtype, copy=False)


def _along(xp: ModuleType, array: Array, axis: int, one: AxisMap) -> Array:
    taps = len(one.indices)
    if one.blocks is not None and taps > 1:
        shape = (*array.shape[:axis], one.out, taps, *array.shape[axis + 1 :])
        total = array.reshape(shape).sum(axis=axis + 1)
        return total if one.blocks == 1 else total * array.dtype.type(one.blocks)
    shape = (1,) * axis + (-1,) + (1,) * (array.ndim - axis - 1)
    total = None
    for k in range(taps):
        part = xp.take(array, xp.asarray(one.indices[k]), axis=axis)
        if one.weights is not None:
            part = part * xp.asarray(one.weights[k].astype(array.dtype)).reshape(shape)
        total = part if total is None else total + part
    if total is None:  # nothing reaches any new element
        return xp.zeros((*array.shape[:axis], one.out, *array.shape[axis + 1 :]), array.dtype)
    return total


def _rule(input: Spec, maps: tuple[AxisMap, ...], memory_format: MemoryFormat) -> Spec:
    shape: Axes = (*input.shape[: input.ndim - len(maps)], *(one.out for one in maps))
    return formatted(input, shape, memory_format)


RESAMPLE = define(
    "resample",
    rule=_rule,
    forward=lambda xp, input, maps, memory_format: separable(xp, input, maps),
    backward=(
        lambda g, nd, maps, memory_format: nd.resample(g, tuple(one.adjoint for one in maps), memory_format),
    ),
    attributes="maps memory_format",
)


def resample(input: Tensor, maps: tuple[AxisMap, ...], memory_format: MemoryFormat) -> Tensor:
    """One AxisMap for each of the last axes of the input; the result lies in `memory_format`."""
    return apply(RESAMPLE, (input,), (maps, memory_format))
