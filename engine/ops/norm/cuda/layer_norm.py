"""Layer norm and RMS norm of rows on the device: grids and blocks of `norm.cu`.

Rows (M, N) row-major, in float32, float64, float16 or bfloat16; weight and bias (N,) of the same dtype, or float32 with
half precision rows. Statistics and sums are in float32 for the half types. The order of every sum depends on the shape
alone, so equal calls give equal bits.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Prepared, Source, cuda_type, gpu_in_use
from engine.kernels.cuda.rows import FLOATS, NOTHING, accesses, aligned, pointer, shape, variant, variants, work_type
from engine.memory import backend

Array = Any
Kernel = Callable[..., Any]

_HALVES = [CUDA_TYPES[name] for name, size in FLOATS.items() if size == 2]
SOURCE = Source(
    "ops/norm/cuda/layer_norm.cu",
    ["layer_norm_forward", "layer_norm_backward", "rms_norm_forward", "rms_norm_backward", "add_parts"],
    [{**each, "WEIGHT": each["ELEMENT"]} for each in variants()]
    + [{**each, "WEIGHT": "float"} for each in variants() if each["ELEMENT"] in _HALVES],
    headers=["rows.cuh"],
)

_BLOCKS_AT_MOST = 512  # that have sums of their own, which the gradients of weight and bias are added up from
_ROWS_A_PART = 16


def layer_norm_forward(rows: Array, weight: Array | None, bias: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """(out (M, N), mean (M,), rstd (M,)) of rows (M, N)."""
    return _forward("layer_norm_forward", rows, (weight, bias), eps)


def rms_norm_forward(rows: Array, weight: Array | None, eps: float) -> tuple[Array, Array]:
    """(out (M, N), rstd (M,)) of rows (M, N)."""
    out, _, rstd = _forward("rms_norm_forward", rows, (weight,), eps)
    return out, rstd


def layer_norm_backward(
    gradient: Array, rows: Array, mean: Array, rstd: Array, weight: Array | None, needs: tuple[bool, bool, bool]
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of rows (M, N), weight (N,) and bias (N,), None for those that `needs` does not ask for."""
    return _backward("layer_norm_backward", gradient, rows, (mean, rstd), weight, needs)


def rms_norm_backward(
    gradient: Array, rows: Array, rstd: Array, weight: Array | None, needs: tuple[bool, bool]
) -> tuple[Array | None, Array | None]:
    """Gradients of rows (M, N) and weight (N,), None for those that `needs` does not ask for."""
    return _backward("rms_norm_backward", gradient, rows, (rstd,), weight, (*needs, False))[:2]


def _forward(kernel: str, rows: Array, vectors: tuple[Array | None, ...], eps: float) -> tuple[Array, Array, Array]:
    count, columns = rows.shape
    dtype = rows.dtype
    kind = work_type(rows)
    empty = backend.device_empty
    out = empty((count, columns), dtype)
    statistics: tuple[Array, ...]
    if kernel == "layer_norm_forward":  # in one block: an allocation takes the host longer than a view
        block = empty((2, count), kind).data
        statistics = empty((count,), kind, block), empty((count,), kind, block + count * kind.itemsize)
    else:
        statistics = (empty((count,), kind),)
    if count:
        in_line = aligned(rows, *vectors)
        plan = _forward_plan(kernel, count, columns, dtype, _weight_type(rows, *vectors), eps, in_line, gpu_in_use())
        plan(rows, *map(pointer, vectors), out, *statistics)
    return out, statistics[0], statistics[-1]


def planned_forward(shape: tuple[int, ...], columns: int, dtype: np.dtype, weight: np.dtype, eps: float) -> Kernel:
    """`layer_norm_forward` of row-major arrays of one shape, rows of whose `columns` elements are normalised, beside
    weight and bias of the dtype `weight`, or None for one that is not there. Of mean and rstd it gives the memory,
    which is what `layer_norm_backward` reads: an array on it takes the host 0.8 µs.
    """
    count = prod(shape) // columns
    kind = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    empty, allocate = backend.device_empty, backend.require_cupy().cuda.alloc
    size = count * kind.itemsize
    launches: dict[bool, Prepared] = {}
    nothing = backend.constant(NOTHING)

    def run(rows: Array, weights: Array | None, bias: Array | None) -> tuple[Array, Array, Array]:
        out = empty(shape, dtype)
        mean = allocate(2 * size)
        rstd = mean + size
        bits = rows.data.ptr
        if weights is not None:
            bits |= weights.data.ptr
        if bias is not None:
            bits |= bias.data.ptr
        in_line = not bits & 15
        launch = launches.get(in_line)
        if launch is None:
            kernel = "layer_norm_forward"
            launch = _forward_plan(kernel, count, columns, dtype, cuda_type(weight), eps, in_line, gpu_in_use())
            launches[in_line] = launch
        launch(rows, nothing if weights is None else weights, nothing if bias is None else bias, out, mean, rstd)
        return out, mean, rstd

    return run


@lru_cache(4096)
def _forward_plan(
    kernel: str, count: int, columns: int, dtype: np.dtype, weight: str, eps: float, in_line: bool, gpu: int
) -> Prepared:
    elements = accesses(columns, dtype.itemsize, in_line)
    grid, block = shape(count, columns // elements, 512)
    constants = (np.int64(count), np.int64(columns), np.float64(eps))
    return SOURCE.prepare(kernel, {**variant(elements, dtype), "WEIGHT": weight}, grid, block, constants)


def _backward(
    kernel: str,
    gradient: Array,
    rows: Array,
    statistics: tuple[Array, ...],
    weight: Array | None,
    needs: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:
    empty = backend.device_empty
    count, columns = rows.shape
    dtype = rows.dtype
    kind = dtype if weight is None else weight.dtype
    to_rows = empty((count, columns), dtype) if needs[0] else None
    to_vectors = [empty((columns,), kind) if needed else None for needed in needs[1:]]
    if not count or not columns:
        for vector in to_vectors:
            if vector is not None:
                vector.fill(0)
        return to_rows, to_vectors[0], to_vectors[1]
    in_line, vectors = aligned(rows, gradient, weight), any(needs[1:])
    plan = _backward_plan(kernel, count, columns, dtype, _weight_type(rows, weight), vectors, in_line, gpu_in_use())
    work = work_type(rows)
    sums = [empty((plan.parts, columns), work) if needed else None for needed in needs[1:]]
    given = sums if kernel == "layer_norm_backward" else sums[:1]
    plan.launch(gradient, rows, pointer(weight), *statistics, pointer(to_rows), *map(pointer, given))
    if sums[0] is None and vectors:  # one matrix: the first
        plan.add_one(sums[1], NOTHING, to_vectors[1], NOTHING)
    elif vectors:
        add = plan.add_one if sums[1] is None else plan.add_both
        add(sums[0], pointer(sums[1]), to_vectors[0], pointer(to_vectors[1]))
    return to_rows, to_vectors[0], to_vectors[1]


class _BackwardPlan(NamedTuple):
    launch: Prepared
    parts: int  # rows of sums
    add_one: Prepared
    add_both: Prepared


@lru_cache(4096)
def _backward_plan(
    kernel: str, count: int, columns: int, dtype: np.dtype, weight: str, vectors: bool, in_line: bool, gpu: int
) -> _BackwardPlan:
    elements = accesses(columns, dtype.itemsize, in_line)
    macros = {**variant(elements, dtype), "WEIGHT": weight}
    grid, block = shape(count, columns // elements, 256)
    if vectors:
        parts = min(max(count // _ROWS_A_PART, 1), _BLOCKS_AT_MOST * block[1])
        grid = (min(-(-parts // block[1]), grid[0]),)
    parts = grid[0] * block[1]
    launch = SOURCE.prepare(kernel, macros, grid, block, (np.int64(count), np.int64(columns)))
    sizes = (np.int64(parts), np.int64(columns))
    add_one, add_both = (
        SOURCE.prepare("add_parts", macros, (-(-columns // 32), matrices), (32, 32), sizes) for matrices in (1, 2)
    )
    return _BackwardPlan(launch, parts, add_one, add_both)


def _weight_type(rows: Array, *vectors: Array | None) -> str:
    return next((cuda_type(vector.dtype) for vector in vectors if vector is not None), cuda_type(rows.dtype))
