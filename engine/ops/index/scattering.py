"""Writing at index arrays where several values may go to one place: `combine_at`, the ufunc.at of both devices."""

from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.memory.backend import Array
from engine.ops.embedding import kernels

_LONG = 8  # numbers of a row


def combine_at(xp: ModuleType, operation: str, target: Array, key: tuple[Any, ...], values: Array) -> None:
    """target[key] becomes operation(target[key], values), repeated places included, in the order they come.

    operation: the name of a ufunc, "add", "multiply", "maximum" or "minimum". key: one entry an axis, a slice or an
    integer array.
    """
    if xp is np:
        if operation == "add" and _are_rows(target, key):
            _add_rows(target, key[0], values)
        else:
            getattr(np, operation).at(target, key, values)
        return
    from engine.ops.index import cuda as scatter

    if target.dtype.kind == "c":
        if operation != "add":
            raise NotImplementedError(f"{operation} at indices: not implemented for {target.dtype} on a GPU")
        part = target.real.dtype
        shape = (*target.shape, 2)
        memory = xp.ascontiguousarray(target)
        parts = xp.ascontiguousarray(xp.broadcast_to(values, _result_shape(target.shape, key)), target.dtype)
        combine_at(
            xp, "add", memory.view(part).reshape(shape), (*key, slice(None)), parts.view(part).reshape(*parts.shape, 2)
        )
    else:
        memory = xp.ascontiguousarray(target)
        leading = sum(not isinstance(entry, slice) for entry in key)
        if any(isinstance(entry, slice) for entry in key[:leading]):
            # The indexed axes are not the first: the places of single elements.
            places = xp.arange(memory.size).reshape(memory.shape)[key]
            leading, width = memory.ndim, 1
        else:
            places, width = _flat_places(xp, memory.shape[:leading], key[:leading]), prod(memory.shape[leading:])
        shape = (*places.shape, *memory.shape[leading:])
        rows = xp.ascontiguousarray(xp.broadcast_to(values, shape), memory.dtype)
        scatter.combine(
            operation,
            memory.reshape(prod(memory.shape[:leading]), width),
            xp.ascontiguousarray(places).reshape(-1),
            rows.reshape(places.size, width),
        )
    if memory is not target:
        target[...] = memory


def _are_rows(target: Array, key: tuple[Any, ...]) -> bool:
    """Whether a key addresses whole rows that the compiled kernel adds to; short ones are faster in NumPy."""
    if target.dtype.char not in "fd" or not target.flags.c_contiguous or not target.size >= _LONG * len(target) > 0:
        return False
    return not isinstance(key[0], slice) and all(isinstance(entry, slice) and entry == slice(None) for entry in key[1:])


def _add_rows(target: Array, index: Array, values: Array) -> None:
    number, width = len(target), target.size // len(target)
    places = np.where(index < 0, index + number, index).reshape(-1).astype(np.int64, copy=False)
    rows = np.broadcast_to(values, (*index.shape, *target.shape[1:])).reshape(places.size, width)
    bad = kernels.add_rows(target.reshape(number, width), places, np.ascontiguousarray(rows, target.dtype))
    if bad >= 0:
        raise IndexError(f"index {index.reshape(-1)[bad]} is out of bounds for axis 0 with size {number}")


def _flat_places(xp: ModuleType, shape: tuple[int, ...], indices: tuple[Array, ...]) -> Array:
    """Row-major positions (int64) of what indices address in an array of `shape`; negative ones count from the end."""
    places = xp.zeros((), np.int64)
    for size, index in zip(shape, indices, strict=True):
        places = places * size + index % max(size, 1)
    return places


def _result_shape(shape: tuple[int, ...], key: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of array[key]."""
    indexed = [axis for axis, entry in enumerate(key) if not isinstance(entry, slice)]
    broadcast = np.broadcast_shapes(*(key[axis].shape for axis in indexed))
    kept = [
        len(range(*key[axis].indices(size))) if axis < len(key) else size
        for axis, size in enumerate(shape)
        if axis not in indexed
    ]
    adjacent = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
    at = indexed[0] if adjacent else 0
    return (*kept[:at], *broadcast, *kept[at:])
