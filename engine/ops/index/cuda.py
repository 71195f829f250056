"""Rows of values combined into rows of a target where several may go to one place: the grids of `scatter.cu`.

CuPy's `add.at` and its kind add with atomics, whose sums depend on who arrives first, and know few element types.
"""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source, cuda_type
from engine.memory import backend

Array = Any

_THREADS = 256
_BLOCKS_AT_MOST = 1 << 16  # each thread goes on from there in strides of the grid
_KINDS = ("float", "double", "float16", "bfloat16", "signed char", "short", "int", "long long", "unsigned char", "bool")

SOURCE = Source(
    "ops/index/scatter.cu",
    ["add_at", "multiply_at", "maximum_at", "minimum_at"],
    [{"ELEMENT": kind} for kind in _KINDS],
)


def combine(operation: str, target: Array, keys: Array, values: Array) -> None:
    """target[keys[i]] becomes operation(target[keys[i]], values[i]), i in ascending order.

    operation: "add", "multiply", "maximum" or "minimum". target: (rows, width), row-major; keys: (count,) int64 from 0
    to rows - 1; values: (count, width), row-major, of the target's dtype, which is real. Half precision is computed in
    single and rounded once.
    """
    count, width = values.shape
    if not count * width:
        return
    order = backend.require_cupy().argsort(keys, kind="stable")
    launch = SOURCE.get(f"{operation}_at", ELEMENT=cuda_type(target.dtype))
    blocks = min(-(-count * width // _THREADS), _BLOCKS_AT_MOST)
    launch((blocks,), (_THREADS,), (keys[order], order, values, target, np.int64(count), np.int64(width)))
