"""Sums, differences, products and quotients of arrays that lie alike: grids of `arithmetic.cu`.

CuPy's ufuncs give the same bits, and find out at each call what a plan knows: with them `x + y` took the host 8.9 µs,
of which 5 are cupy.add without the memory of its result; with these 5.1.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.calls.plan import Plan
from engine.kernels.cuda.launch import CUDA_TYPES, Prepared, Source
from engine.kernels.cuda.rows import FLOATS, flat_grid, variant
from engine.ops.shared.fused import planned_alike

SOURCE = Source(
    "ops/pointwise/arithmetic.cu",
    ["add", "subtract", "multiply", "true_divide"],
    [{"ELEMENT": CUDA_TYPES[name], "WIDTH": str(16 // size)} for name, size in FLOATS.items()],
    headers=["rows.cuh"],
)


def planned(function: str, plan: Plan) -> Callable[..., Any] | None:
    """The kernel of a plan; None where operands differ in layout or dtype, or there is no kernel for it."""
    count, dtype = plan.out.numel, plan.out.dtype.numpy

    def prepare(in_line: bool) -> Prepared:
        elements = 16 // dtype.itemsize
        packs = count // elements if in_line else 0
        constants = (np.int64(count), np.int64(packs))
        return SOURCE.prepare(function, variant(elements, dtype), *flat_grid(packs or count), constants)

    return planned_alike(plan, prepare)
