"""softmax and log_softmax on the device: grids and blocks of `softmax.cu`.

Arrays are row-major, of float32, float64, float16 or bfloat16; half types are computed in float32. Elements that lie
side by side along the axis are a row's; across it, a thread walks along the axis beside its neighbours.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Prepared, Source, gpu_in_use
from engine.kernels.cuda.rows import accesses, aligned, flat_grid, variant, variants
from engine.kernels.cuda.rows import shape as grid_of_rows
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


def planned_forward(name: str, shape: tuple[int, ...], dtype: np.dtype, dim: int) -> Callable[[Array], Array]:
    """`forward` of row-major arrays of one shape with elements."""
    empty = backend.device_empty
    launches: dict[bool, Prepared] = {}

    def run(x: Array) -> Array:
        out = empty(shape, dtype)
        in_line = not x.data.ptr & 15
        launch = launches.get(in_line)
        if launch is None:
            launch = launches[in_line] = _plan(f"{name}_forward", shape, dtype, dim, in_line, gpu_in_use())
        launch(x, out)
        return out

    return run


def _run(name: str, way: str, dim: int, *arrays: Array) -> Array:
    first = arrays[0]
    shape, dtype = first.shape, first.dtype
    out = backend.device_empty(shape, dtype)
    if first.size:
        _plan(f"{name}_{way}", shape, dtype, dim, aligned(*arrays), gpu_in_use())(*arrays, out)
    return out


@lru_cache(4096)
def _plan(kernel: str, shape: tuple[int, ...], dtype: np.dtype, dim: int, in_line: bool, gpu: int) -> Prepared:
    sizes = shape or (1,)
    size, outer, inner = sizes[dim], prod(sizes[:dim]), prod(sizes[dim % len(sizes) + 1 :])
    if inner > 1:
        name, way = kernel.rsplit("_", 1)
        numbers = (np.int64(outer), np.int64(size), np.int64(inner))
        return SOURCE.prepare(f"{name}_columns_{way}", variant(1, dtype), *flat_grid(outer * inner), numbers)
    elements = accesses(size, dtype.itemsize, in_line)
    grid, block = grid_of_rows(outer, size // elements, 512)
    return SOURCE.prepare(kernel, variant(elements, dtype), grid, block, (np.int64(outer), np.int64(size)))
