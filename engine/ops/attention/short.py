"""Attention of short sequences on the CPU, without a mask, by kernels of its own (`kernels/short.py`).

The arrays are those of `engine.ops.attention.operator`.
"""

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.autograd.modes import state
from engine.kernels.tiling import tiles
from engine.kernels.vectors import tile_prices, vector_bytes
from engine.ops.attention import cpu
from engine.ops.attention.kernels import short
from engine.ops.attention.results import like_query, positions_first
from engine.rules import layout
from engine.sharing import threads

Array = np.ndarray
Lie = tuple[tuple[int, ...], tuple[int, ...]]  # shape, strides in bytes

_LONGEST = 256  # positions and widths: beyond, factors are to be packed, as BLAS does
_WASTE = 1.5  # of columns that are computed to those there are


def serves(*operands: Any) -> bool:
    """Whether this applies to query, key and value: NumPy arrays of float32 or float64 of sizes that fit."""
    return all(
        array.__class__ is np.ndarray
        and array.dtype.char in "fd"
        and array.size > 0
        and array.strides[-1] == array.itemsize
        and all(_fits(size, vector_bytes() // array.itemsize) for size in array.shape[-2:])
        for array in operands
    )


def _fits(size: int, vector: int) -> bool:
    """Whether there are so many positions, or elements of each: whole vectors, or nearly."""
    return vector <= size <= _LONGEST and -(-size // vector) * vector <= _WASTE * size


def attention(query: Array, key: Array, value: Array, causal: bool, scale: float) -> tuple[Array, Array, Array | None]:
    """The result, its log-sum-exp, and the probabilities if they are to be kept."""
    batch = layout.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    queries, keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    out = like_query(np.empty, query, (*batch, queries, value.shape[-1]), None)
    log_sums = np.empty((*batch, queries), query.dtype)
    keeps = state.grad_enabled and log_sums.size * keys * query.itemsize <= cpu.KEPT_BYTES
    kept = np.empty((*batch, queries, keys), query.dtype) if keeps else None
    firsts, places, numbers, of_queries, _ = _prepared(batch, query, key, value, out)
    run = short.attend[query.dtype.char]

    def some(part: slice) -> None:
        sums, scores = log_sums.reshape(-1, queries)[part].reshape(-1), _scores(kept, queries, keys, part, query.dtype)
        room = np.empty(keys * width, query.dtype)
        run(*firsts, sums, scores, room, places[part].reshape(-1), numbers, of_queries, causal, scale)

    threads.in_pieces(some, len(places), cpu.work(batch, queries, keys, width + value.shape[-1]))
    return out, log_sums, kept


def slopes(
    g: Array,
    query: Array,
    key: Array,
    value: Array,
    causal: bool,
    scale: float,
    log_sums: Array,
    kept: Array | None,
) -> list[Any]:
    """The gradients of query, key and value; None for the masks."""
    batch, queries, keys, widths = g.shape[:-2], query.shape[-2], key.shape[-2], (query.shape[-1], value.shape[-1])
    g = g if g.strides[-1] == g.itemsize else np.ascontiguousarray(g)
    found = [positions_first(np.empty, (*batch, *array.shape[-2:]), array.dtype) for array in (query, key, value)]
    firsts, places, numbers, *lines = _prepared(batch, query, key, value, g, *found)
    run = short.descend[query.dtype.char]

    def some(part: slice) -> None:
        sums, scores = log_sums.reshape(-1, queries)[part].reshape(-1), _scores(kept, queries, keys, part, query.dtype)
        of_scores, room = np.empty((queries, keys), query.dtype), np.empty(keys * max(widths), query.dtype)
        rest = numbers, *lines, causal, scale, kept is None
        run(*firsts, sums, scores, of_scores, room, places[part].reshape(-1), *rest)

    threads.in_pieces(some, len(places), cpu.work(batch, queries, keys, sum(widths)))
    return [*found, None, None]


def _scores(kept: Array | None, queries: int, keys: int, part: slice, dtype: np.dtype) -> Array:
    """Those kept of some slices, one below the other; where there are none, memory for one."""
    if kept is None:
        return np.empty((queries, keys), dtype)
    return kept.reshape(-1, queries, keys)[part].reshape(-1, keys)


def _prepared(batch: tuple[int, ...], *arrays: Array) -> tuple[list[Array], Array, Array, Array, Array]:
    """The first element of each array, and what the kernels are told of where the others are."""
    lies = tuple((array.shape, array.strides) for array in arrays)
    firsts = [array[(0,) * (array.ndim - 1)][:1] for array in arrays]
    return firsts, *_places_and_numbers(batch, lies, arrays[0].itemsize)


@lru_cache(1024)
def _places_and_numbers(batch: tuple[int, ...], lies: tuple[Lie, ...], item: int) -> tuple[Array, Array, Array, Array]:
    """`places` and `numbers` of the kernels, and the tiles of the queries and of the keys."""
    (*_, queries, width), (*_, keys, value_width) = lies[0][0], lies[2][0]
    steps = [strides[-2] // item for _, strides in lies]
    numbers = np.array([queries, keys, width, value_width, vector_bytes() // item, item, *steps], np.int64)
    places = np.stack([_starts(lie, batch, item) for lie in lies], axis=-1)
    of_queries, of_keys = (tiles(size, True, tile_prices(2)).reshape(-1) for size in (queries, keys))
    return places, numbers, of_queries, of_keys


def _starts(lie: Lie, batch: tuple[int, ...], item: int) -> Array:
    """The first element of each matrix, in the order of the batch."""
    shape, strides = lie[0][:-2], lie[1][:-2]
    own = np.zeros(shape, np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        own += (np.arange(size) * (stride // item)).reshape(-1, *[1] * (len(shape) - axis - 1))
    return np.broadcast_to(own, batch).reshape(prod(batch))
