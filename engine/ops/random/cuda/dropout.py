"""The pass of dropout on the device: the grid of `dropout.cu`."""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source
from engine.kernels.cuda.rows import FLOATS, flat_grid, macros
from engine.memory import backend

Array = Any

SOURCE = Source(
    "ops/random/cuda/dropout.cu",
    ["masked_scale"],
    [{"ELEMENT": CUDA_TYPES[name], "WIDTH": str(16 // size)} for name, size in FLOATS.items()],
    headers=["rows.cuh"],
)


def masked_scale(x: Array, mask: Array, scale: float) -> Array:
    """x * mask * scale for a floating point array and a bool mask, dense in one layout, which the result has."""
    out = backend.require_cupy().empty_like(x)
    count, elements = x.size, 16 // x.dtype.itemsize
    if count:
        aligned = not (x.data.ptr % 16 or out.data.ptr % 16 or mask.data.ptr % elements)
        packs = count // elements if aligned else 0
        launch = SOURCE.get("masked_scale", **macros(elements, x))
        launch(*flat_grid(packs or count), (x, mask, out, np.int64(count), np.int64(packs), np.float64(scale)))
    return out
