"""Activations on the device, forward and backward: grids of `activation.cu`.

Arrays are dense in one layout, of a floating point dtype; half types are computed in float32. Numbers are an
activation's parameters in the order of torch.nn.functional.
"""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source
from engine.kernels.cuda.rows import FLOATS, flat_grid, macros
from engine.memory import backend

Array = Any

NAMES = (
    *("gelu", "gelu_tanh", "silu", "leaky_relu", "elu", "hardtanh", "hardsigmoid", "hardswish", "threshold"),
    *("hardshrink", "softshrink", "softplus", "mish", "logsigmoid", "relu", "sigmoid", "tanh"),
)
SOURCE = Source(
    "ops/activation/activation.cu",
    [f"{name}_{way}" for name in NAMES for way in ("forward", "backward")],
    [{"ELEMENT": CUDA_TYPES[name], "WIDTH": str(16 // size)} for name, size in FLOATS.items()],
    headers=["rows.cuh"],
)


def forward(name: str, x: Array, *numbers: float) -> Array:
    """The activation of a dense array, in its layout."""
    return _run(f"{name}_forward", numbers, x)


def backward(name: str, gradient: Array, x: Array, *numbers: float) -> Array:
    """The gradient of x, in the layout that both have; for relu, sigmoid and tanh x is their result."""
    return _run(f"{name}_backward", numbers, gradient, x)


def _run(kernel: str, numbers: tuple[float, ...], *arrays: Array) -> Array:
    first = arrays[0]
    out = backend.require_cupy().empty_like(first)
    count, elements = first.size, 16 // first.dtype.itemsize
    if count:
        aligned = not any(array.data.ptr % 16 for array in (*arrays, out))
        packs = count // elements if aligned else 0
        launch = SOURCE.get(kernel, **macros(elements, first))
        padded = (*numbers, *(0.0,) * (3 - len(numbers)))
        launch(*flat_grid(packs or count), (*arrays, out, np.int64(count), np.int64(packs), *map(np.float64, padded)))
    return out
