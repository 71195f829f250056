"""Separable linear maps along the spatial axes: adaptive averages and every kind of interpolation are one operator.

A map of one axis (`AxisMap`) gives each new element as a weighted sum of a few old ones; `resample` applies one an
axis. Its derivative is `resample` with the adjoint maps.
"""

from collections.abc import Sequence
from functools import cached_property
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.ops.shared.windows import Axes, channels_first, channels_last, compiled, formatted, lies_channels_last
from engine.rules.layout import MemoryFormat
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any


class AxisMap:
    """new[i] = sum over k of weights[k, i] * old[indices[k, i]], along one axis. Compared by identity: make one a shape
    and keep it.

    Attributes: size and out (of the old and the new axis), indices (K, out) int64 with -1 where an element has fewer
    than K terms, weights (K, out) float64.
    """

    def __init__(self, size: int, indices: Array, weights: Array) -> None:
        self.size = size
        self.out = indices.shape[1]
        self.indices = np.ascontiguousarray(indices, np.int64)
        self.weights = np.asarray(weights, float)
        self._tables: dict[tuple[int, str], tuple[Array, Array]] = {}

    @cached_property
    def terms(self) -> list[tuple[Array | None, Array, Array | None]]:
        """For each k: which new elements have a term (None: all), its indices, its weights (None: all 1)."""
        found = []
        for index, weight in zip(self.indices, self.weights, strict=True):
            present = index >= 0
            weight = weight[present]
            found.append(
                (
                    None if present.all() else np.flatnonzero(present),
                    index[present],
                    None if (weight == 1).all() else weight,
                )
            )
        return found

    def on_gpu(self, xp: ModuleType, kind: str) -> tuple[Array, Array]:
        """Indices and weights on the current GPU, the weights in dtype `kind`; copied there once."""
        key = (xp.cuda.runtime.getDevice(), kind)
        if key not in self._tables:
            self._tables[key] = xp.asarray(self.indices), xp.asarray(self.weights.astype(kind))
        return self._tables[key]

    @cached_property
    def identity(self) -> bool:
        """Whether the map changes nothing."""
        return self.blocks == 1 and self.size == self.out

    @cached_property
    def blocks(self) -> float | None:
        """The common weight if the new elements are sums of equal blocks of the old axis, in order; else None."""
        if (
            self.size != self.indices.size
            or not self.size
            or not bool((self.indices.T.reshape(-1) == np.arange(self.size)).all())
        ):
            return None
        weight = float(self.weights.flat[0])
        return weight if bool((self.weights == weight).all()) else None

    @cached_property
    def adjoint(self) -> "AxisMap":
        """The transposed map, from the new axis to the old one."""
        entries: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for k, i in np.ndindex(*self.indices.shape):
            if self.indices[k, i] >= 0:
                entries[int(self.indices[k, i])].append((i, float(self.weights[k, i])))
        longest = max(map(len, entries), default=0)
        indices, weights = np.full((longest, self.size), -1), np.zeros((longest, self.size))
        for place, found in enumerate(entries):
            for k, (i, weight) in enumerate(sorted(found)):
                indices[k, place], weights[k, place] = i, weight
        adjoint = AxisMap(self.out, indices, weights)
        adjoint.adjoint = self
        return adjoint


def windowed_mean(size: int, begin: Array, end: Array, divisor: Array) -> AxisMap:
    """new[i] = sum of old[begin[i] : end[i]] / divisor[i]."""
    positions = begin + np.arange((end - begin).max(initial=0))[:, None]
    inside = positions < end
    return AxisMap(size, np.where(inside, positions, -1), np.where(inside, 1 / divisor, 0.0))


def separable(xp: ModuleType, array: Array, maps: Sequence[AxisMap]) -> Array:
    """`maps` applied to the last axes of an array, those that shrink it most first."""
    if array.ndim == len(maps) + 2 and lies_channels_last(array):
        return channels_first(_separable(xp, channels_last(array), maps, 1))
    return _separable(xp, array, maps, array.ndim - len(maps))


def _separable(xp: ModuleType, array: Array, maps: Sequence[AxisMap], first: int) -> Array:
    exact = all(one.identity or (len(one.terms) == 1 and one.terms[0][2] is None) for one in maps)
    half = array.dtype.itemsize < 4 and array.dtype.kind not in "iub"
    value = array.astype(xp.float32) if half and not exact else array
    for at in sorted(range(len(maps)), key=lambda at: maps[at].out / max(maps[at].size, 1)):
        if not maps[at].identity:
            value = _along(xp, value, first + at, maps[at])
    return value.astype(array.dtype, copy=value is array)


def _along(xp: ModuleType, array: Array, axis: int, one: AxisMap) -> Array:
    copies = len(one.terms) == 1 and one.terms[0][0] is None and one.terms[0][2] is None
    if compiled(xp, array) and array.size and len(one.terms) and not copies:
        from engine.ops.resample import kernels

        outer, inner = array.shape[:axis], array.shape[axis + 1 :]
        flat = np.ascontiguousarray(array).reshape(prod(outer), one.size, prod(inner))
        found = kernels.weighted_sums(flat, one.indices, one.weights.astype(array.dtype))
        return found.reshape(*outer, one.out, *inner)
    if xp is not np and array.dtype.kind in "fV":
        from engine.ops.resample import cuda as fused

        outer, inner = array.shape[:axis], array.shape[axis + 1 :]
        out = xp.empty((*outer, one.out, *inner), array.dtype)
        flat = xp.ascontiguousarray(array).reshape(prod(outer), one.size, prod(inner))
        tables = one.on_gpu(xp, "float64" if array.dtype == np.float64 else "float32")
        fused.weighted_sums(flat, *tables, out.reshape(prod(outer), one.out, prod(inner)))
        return out
    if one.blocks is not None and len(one.terms) > 1:
        shape = (*array.shape[:axis], one.out, len(one.terms), *array.shape[axis + 1 :])
        total = array.reshape(shape).sum(axis=axis + 1)
        return total if one.blocks == 1 else total * array.dtype.type(one.blocks)
    column = (1,) * axis + (-1,) + (1,) * (array.ndim - axis - 1)
    total = None
    for outputs, indices, weights in one.terms:
        part = xp.take(array, xp.asarray(indices), axis=axis)
        if weights is not None:
            part *= xp.asarray(weights.astype(array.dtype)).reshape(column)
        if total is None and outputs is None:
            total = part
            continue
        if total is None:
            total = xp.zeros((*array.shape[:axis], one.out, *array.shape[axis + 1 :]), array.dtype)
        total[(slice(None),) * axis + (slice(None) if outputs is None else xp.asarray(outputs),)] += part
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
    backward=(lambda g, nd, maps, memory_format: nd.resample(g, tuple(one.adjoint for one in maps), memory_format),),
    attributes="maps memory_format",
)


def resample(input: Tensor, maps: tuple[AxisMap, ...], memory_format: MemoryFormat) -> Tensor:
    """One AxisMap for each of the last axes of the input; the result lies in `memory_format`."""
    return apply(RESAMPLE, (input,), (maps, memory_format))
