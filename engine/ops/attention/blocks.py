"""Attention on the CPU in blocks of scores that stay in cache: products by BLAS, softmax in place by a compiled kernel.

The arrays are those of `engine.ops.attention.operator`, with the attributes of its operator.
"""

import math
from functools import lru_cache
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.modes import state
from engine.ops.attention import cpu
from engine.ops.attention.kernels import softmax
from engine.ops.attention.results import like_query, positions_first
from engine.rules import layout
from engine.sharing import threads

Part = tuple[slice, ...]
Block = tuple[tuple[int, ...], int, int, int]  # leading index, first query, end of queries, end of keys

_BLOCK_BYTES = 1 << 20  # of scores at a time: what a core's second-level cache holds
_QUERIES = 64  # of a causal block: keys right of it are skipped


def fits_blocks(xp: ModuleType, *arrays: Any) -> bool:
    """Whether the blocks serve: NumPy arrays of float32 or float64 with elements."""
    return xp is np and all(array.dtype.char in "fd" and array.size for array in arrays)


def _spread(
    batch: tuple[int, ...], rows: tuple[int, int], operands: tuple[Any, ...], masks: tuple[Any, ...]
) -> list[Any]:
    """Operands with the leading axes of the result, and masks in the shape of the scores (stride 0 where they are
    shared).
    """
    spread = [
        array if array.shape[:-2] == batch else np.broadcast_to(array, (*batch, *array.shape[-2:]))
        for array in operands
    ]
    return spread + [None if mask is None else np.broadcast_to(mask, (*batch, *rows)) for mask in masks]


def _blocks(batch: tuple[int, ...], queries: int, keys: int, causal: bool, itemsize: int) -> tuple[Block, ...]:
    """The blocks of scores; within one index the last queries come first."""
    rows = min(queries, _QUERIES) if causal else min(queries, max(1, _BLOCK_BYTES // (keys * itemsize)))
    return _blocks_of(batch, queries, keys, causal, rows, _BLOCK_BYTES // itemsize)


@lru_cache(256)
def _blocks_of(
    batch: tuple[int, ...], queries: int, keys: int, causal: bool, rows: int, most: int
) -> tuple[Block, ...]:
    leading = 0  # axes that are looped over; np.matmul walks the others
    while leading < len(batch) and math.prod(batch[leading:]) * rows * keys > most:
        leading += 1
    found = []
    for index in np.ndindex(*batch[:leading]):
        for first in range((queries - 1) // rows * rows, -1, -rows):
            end = min(first + rows, queries)
            found.append((index, first, end, min(keys, end) if causal else keys))
    return tuple(found)


def _parts(batch: tuple[int, ...], rows: int, keys: int, width: int) -> tuple[Part, ...]:
    """Indices of the leading axes, a part for each thread that this attention is worth: matrices that do not depend on
    each other, so that each is computed as it would be alone.
    """
    return _parts_of(batch, threads.number_for(cpu.work(batch, rows, keys, width), math.prod(batch)))


@lru_cache(256)
def _parts_of(batch: tuple[int, ...], wanted: int) -> tuple[Part, ...]:
    parts: list[Part] = [()]
    for size in batch:
        number = max(min(size, -(-wanted // len(parts))), 1)
        cuts = [size * place // number for place in range(number + 1)]
        parts = [(*part, slice(*pair)) for part in parts for pair in pairwise(cuts)]
    return tuple(parts)


def _scores(block: Block, query: Any, keys_turned: Any, mask: Any, scale: float) -> tuple[Any, float]:
    """Scores of a block, and the scale that is still to be applied."""
    index, first, end, width = block
    # order="C": the kernels walk rows in place, and left alone NumPy would follow operands with axes in another order
    scores = np.matmul(query[index][..., first:end, :], keys_turned[index][..., :width], order="C")
    if mask is None:
        return scores, scale
    mask = mask[index][..., first:end, :width]
    if mask.dtype == bool:
        np.copyto(scores, -math.inf if scale > 0 else math.inf, where=~mask)
        return scores, scale
    scores *= scale
    scores += mask
    return scores, 1.0


def attention_by_blocks(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    kept: Any,
    causal: bool,
    scale: float,
    kept_scale: float,
) -> Any:
    """The result, its log-sum-exp, and, by part, the probabilities of every block if they are to be kept (else
    None).
    """
    batch = layout.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    out = like_query(np.empty, query, (*batch, query.shape[-2], value.shape[-1]), kept)
    queries, keys = query.shape[-2], value.shape[-2]
    query, turned, value, mask, kept = _spread(
        batch, (queries, keys), (query, key.swapaxes(-1, -2), value), (mask, kept)
    )
    log_sums = np.empty((*batch, queries), query.dtype)
    keep_blocks = state.grad_enabled and math.prod(batch) * queries * keys * query.itemsize <= cpu.KEPT_BYTES
    width = query.shape[-1] + value.shape[-1]
    blocks: list[tuple[Part, list[Any]]] = [(part, []) for part in _parts(batch, queries, keys, width)]

    def attend(part_and_blocks: tuple[Part, list[Any]]) -> None:
        part, its_blocks = part_and_blocks
        some, keys_turned, values, result, sums_of = (array[part] for array in (query, turned, value, out, log_sums))
        masked, drawn = (None if array is None else array[part] for array in (mask, kept))
        for block in _blocks(sums_of.shape[:-1], queries, keys, causal, query.itemsize):
            index, first, end, width = block
            scores, factor = _scores(block, some, keys_turned, masked, scale)
            sums = np.empty(scores.shape[:-1], scores.dtype)
            softmax.softmax_rows(
                scores.reshape(-1, width),
                sums.reshape(-1),
                length=end - first,
                scale=factor,
                causal=causal,
                first=first,
            )
            sums_of[index][..., first:end] = sums
            if keep_blocks:
                its_blocks.append(scores)
            dropped = scores
            if drawn is not None:
                dropped = scores * drawn[index][..., first:end, :width] * scores.dtype.type(kept_scale)
            np.matmul(dropped, values[index][..., :width, :], out=result[index][..., first:end, :])

    threads.share(attend, blocks, cpu.work(batch, queries, keys, width))
    return out, log_sums, blocks if keep_blocks else None


def slopes_by_blocks(
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    kept: Any,
    causal: bool,
    scale: float,
    kept_scale: float,
    log_sums: Any,
    blocks: Any,
) -> list[Any]:
    """The gradients of query, key and value; None for the masks."""
    batch = g.shape[:-2]
    queries, keys = query.shape[-2], key.shape[-2]
    query, key, value, mask, kept = _spread(batch, (queries, keys), (query, key, value), (mask, kept))
    turned, value_turned = key.swapaxes(-1, -2), value.swapaxes(-1, -2)
    of_query, of_key, of_value = (positions_first(np.empty, array.shape, array.dtype) for array in (query, key, value))

    def descend(part_and_blocks: tuple[Part, list[Any]]) -> None:
        part, its_blocks = part_and_blocks
        some, keys_of, keys_turned, values_turned = (array[part] for array in (query, key, turned, value_turned))
        masked, drawn = (None if array is None else array[part] for array in (mask, kept))
        slopes, to_query, to_key, to_value = (array[part] for array in (g, of_query, of_key, of_value))
        kept_blocks = None if blocks is None else iter(its_blocks)
        for block in _blocks(slopes.shape[:-2], queries, keys, causal, query.itemsize):
            index, first, end, width = block
            if kept_blocks is not None:
                probabilities, factor = next(kept_blocks), scale
            else:
                probabilities, factor = _scores(block, some, keys_turned, masked, scale)
                sums = np.ascontiguousarray(log_sums[part][index][..., first:end])
                softmax.softmax_rows_again(
                    probabilities.reshape(-1, width),
                    sums.reshape(-1),
                    length=end - first,
                    scale=factor,
                    causal=causal,
                    first=first,
                )
            g_block = slopes[index][..., first:end, :]
            of_scores = np.matmul(g_block, values_turned[index][..., :width], order="C")
            dropped = probabilities
            if drawn is not None:
                factors = drawn[index][..., first:end, :width] * of_scores.dtype.type(kept_scale)
                of_scores *= factors
                dropped = probabilities * factors
            softmax.softmax_rows_backward(
                of_scores.reshape(-1, width),
                probabilities.reshape(-1, width),
                length=end - first,
                scale=scale,
                causal=causal,
                first=first,
            )
            np.matmul(of_scores, keys_of[index][..., :width, :], out=to_query[index][..., first:end, :])
            whole = end == queries  # the first block of an index: it writes, the others add
            _accumulate(to_key[index], of_scores, some[index][..., first:end, :], width, whole)
            _accumulate(to_value[index], dropped, g_block, width, whole)

    width = key.shape[-1] + value.shape[-1]
    parts = [(part, []) for part in _parts(batch, queries, keys, width)] if blocks is None else blocks
    threads.share(descend, parts, cpu.work(batch, queries, keys, width))
    return [of_query, of_key, of_value, None, None]


def _accumulate(target: Any, of_rows: Any, rows: Any, width: int, whole: bool) -> None:
    """target[:width] becomes, or grows by, of_rowsᵀ rows."""
    if whole:
        if width < target.shape[-2]:
            target[..., width:, :] = 0
        np.matmul(of_rows.swapaxes(-1, -2), rows, out=target[..., :width, :])
    else:
        target[..., :width, :] += np.matmul(of_rows.swapaxes(-1, -2), rows)
