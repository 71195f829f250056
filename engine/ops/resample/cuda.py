"""Weighted sums along one axis: the grid of `resample.cu`."""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source, cuda_type

Array = Any

_THREADS = 256
_BLOCKS_AT_MOST = 1 << 16  # each thread goes on from there in strides of the grid

SOURCE = Source(
    "ops/resample/resample.cu",
    ["weighted_sums"],
    [{"ELEMENT": kind} for kind in ("float", "double", "float16", "bfloat16")],
)


def weighted_sums(values: Array, indices: Array, weights: Array, out: Array) -> None:
    """out[o, i, n] becomes the sum over k of weights[k, i] * values[o, indices[k, i], n]; an index of -1 is no term.

    values: (outer, size, inner) and out: (outer, count, inner), row-major, of one floating point dtype; indices (K,
    count) int64; weights (K, count) float64 for float64, else float32.
    """
    outer, size, inner = values.shape
    terms, count = indices.shape
    if not out.size:
        return
    blocks = min(-(-out.size // _THREADS), _BLOCKS_AT_MOST)
    sizes = (np.int64(outer), np.int64(size), np.int64(inner), np.int64(count), np.int32(terms))
    launch = SOURCE.get("weighted_sums", ELEMENT=cuda_type(values.dtype))
    launch((blocks,), (_THREADS,), (values, indices, weights, out, *sizes))
