"""softmax and log_softmax on the device: grids and blocks of `softmax.cu`.

Arrays are row-major, of float32, float64, float16 or bfloat16; half types are computed in float32. Elements that lie
side by side along the axis are a row's; across it, a thread walks along the axis beside its neighbours.
"""

from math import prod
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.kernels.cuda.rows import flat_grid, macros, shape, variants, width
from engine.memory import backend

Array = Any

_NAMES = [
    f"{name}{kind}_{way}"
    for name in ("softmax", "log_softmax")
    for kind in ("", "_columns")
    for way in ("forward", "backward")
]
SOURCE = Source("ops/softmax/softmax.cu", _NAMES, variants(), headers=["rows.cuh", "online.cuh"])


def forward(name: str, x: Array, dim: int) -> Array:
    """`name` ("softmax" or "log_softmax") of a row-major array along an axis, in its dtype."""
    return _run(name, "forward", dim, x)


def backward(name: str, gradient: Array, out: Array, dim: int) -> Array:
    """The gradient of the input from that of the result and the result, both row-major."""
    return _run(name, "backward", dim, gradient, out)


def _run(name: str, way: str, dim: int, *arrays: Array) -> Array:
    cupy = backend.require_cupy()
    first = arrays[0]
    out = cupy.empty(first.shape, first.dtype)
    if not first.size:
        return out
    sizes = first.shape or (1,)
    size, outer, inner = sizes[dim], prod(sizes[:dim]), prod(sizes[dim % len(sizes) + 1 :])
    if inner > 1:
        launch = SOURCE.get(f"{name}_columns_{way}", **macros(1, first))
        launch(*flat_grid(outer * inner), (*arrays, out, np.int64(outer), np.int64(size), np.int64(inner)))
        return out
    elements = width(size, *arrays)
    launch = SOURCE.get(f"{name}_{way}", **macros(elements, first))
    launch(*shape(outer, size // elements, 512), (*arrays, out, np.int64(outer), np.int64(size)))
    return out
