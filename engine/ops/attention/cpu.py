"""What the ways to compute attention on the CPU share: how much is kept of it, its work, memory for its results."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from engine.memory import backend
from engine.rules import layout
from engine.rules.spec import Spec, spec_of
from engine.sharing import threads

KEPT_BYTES = 1 << 26
"""Probabilities up to this size are kept for backward; beyond, the log-sum-exp is, and they are computed again."""


def work(batch: tuple[int, ...], rows: int, keys: int, width: int) -> int:
    """As `engine.sharing.threads` counts it."""
    return math.prod(batch) * rows * keys * width // threads.PRODUCTS


def like_query(query: Any, shape: tuple[int, ...], kept: Any) -> Any:
    """Memory for the result in the layout of the rule."""
    if query.ndim != 4 or kept is not None or query.shape != shape:
        return np.empty(shape, query.dtype)
    return backend.empty(_spec_like(backend.spec_of_array(query)))


@lru_cache(256)
def _spec_like(query: Spec) -> Spec:
    stride = layout.preserve_strides(query.shape, query.stride) if query.stride[-1] == 1 else None
    return spec_of(query.shape, stride, query.dtype)


def positions_first(array: Any) -> Any:
    """Memory for the gradient of a (..., heads, positions, width) operand: positions outside heads, as PyTorch lays it
    out.
    """
    if array.ndim < 3:
        return np.empty(array.shape, array.dtype)
    return np.empty((*array.shape[:-3], array.shape[-2], array.shape[-3], array.shape[-1]), array.dtype).swapaxes(
        -2, -3
    )
