"""Activations on the device, forward and backward: grids of `activation.cu`.

Arrays are dense in one layout, of a floating point dtype; half types are computed in float32. Numbers are an
activation's parameters in the order of torch.nn.functional.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from engine.calls.plan import Plan
from engine.kernels.cuda.launch import CUDA_TYPES, Prepared, Source, gpu_in_use
from engine.kernels.cuda.rows import FLOATS, aligned, flat_grid, variant
from engine.memory import backend
from engine.ops.shared.fused import planned_alike

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


def planned(kernel: str, numbers: tuple[float, ...], plan: Plan) -> Callable[..., Array] | None:
    """The kernel of one plan of an activation; None where the one for all layouts and dtypes runs."""
    count, dtype = plan.out.numel, plan.out.dtype.numpy
    return planned_alike(plan, lambda in_line: _plan(kernel, numbers, count, dtype, in_line, gpu_in_use()))


def _run(kernel: str, numbers: tuple[float, ...], *arrays: Array) -> Array:
    first = arrays[0]
    count, dtype = first.size, first.dtype
    row_major = first.flags.c_contiguous
    out = backend.device_empty(first.shape, dtype) if row_major else backend.require_cupy().empty_like(first)
    if count:
        _plan(kernel, numbers, count, dtype, aligned(*arrays), gpu_in_use())(*arrays, out)
    return out


@lru_cache(4096)
def _plan(kernel: str, numbers: tuple[float, ...], count: int, dtype: np.dtype, in_line: bool, gpu: int) -> Prepared:
    elements = 16 // dtype.itemsize
    packs = count // elements if in_line else 0
    padded = (*numbers, *(0.0,) * (3 - len(numbers)))
    constants = (np.int64(count), np.int64(packs), *map(np.float64, padded))
    return SOURCE.prepare(kernel, variant(elements, dtype), *flat_grid(packs or count), constants)
