"""Layer norm and RMS norm of rows on the device: grids and blocks of `norm.cu`.

Rows (M, N) row-major, in float32, float64, float16 or bfloat16; weight and bias (N,) of the same dtype, or float32 with
half precision rows. Statistics and sums are in float32 for the half types. The order of every sum depends on the shape
alone, so equal calls give equal bits.
"""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source, cuda_type
from engine.kernels.cuda.rows import FLOATS, macros, pointer, shape, variants, width, work_type
from engine.memory import backend

Array = Any

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
    cupy = backend.require_cupy()
    count, columns = rows.shape
    kind = work_type(rows)
    out, rstd = cupy.empty(rows.shape, rows.dtype), cupy.empty(count, kind)
    statistics = [cupy.empty(count, kind), rstd] if kernel == "layer_norm_forward" else [rstd]
    if count:
        elements = width(columns, rows, *vectors)
        launch = SOURCE.get(kernel, **macros(elements, rows, WEIGHT=_weight_type(rows, *vectors)))
        grid, block = shape(count, columns // elements, 512)
        launch(
            grid,
            block,
            (rows, *map(pointer, vectors), out, *statistics, np.int64(count), np.int64(columns), np.float64(eps)),
        )
    return out, statistics[0], rstd


def _backward(
    kernel: str,
    gradient: Array,
    rows: Array,
    statistics: tuple[Array, ...],
    weight: Array | None,
    needs: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:
    cupy = backend.require_cupy()
    count, columns = rows.shape
    kind = rows.dtype if weight is None else weight.dtype
    to_rows = cupy.empty(rows.shape, rows.dtype) if needs[0] else None
    to_vectors = [cupy.empty(columns, kind) if needed else None for needed in needs[1:]]
    if not count or not columns:
        for vector in to_vectors:
            if vector is not None:
                vector.fill(0)
        return to_rows, to_vectors[0], to_vectors[1]
    elements = width(columns, rows, gradient, weight)
    variant = macros(elements, rows, WEIGHT=_weight_type(rows, weight))
    grid, block = shape(count, columns // elements, 256)
    if any(needs[1:]):
        parts = min(max(count // _ROWS_A_PART, 1), _BLOCKS_AT_MOST * block[1])
        grid = (min(-(-parts // block[1]), grid[0]),)
    parts = grid[0] * block[1]
    sums = [cupy.empty((parts, columns), work_type(rows)) if needed else None for needed in needs[1:]]
    given = sums if kernel == "layer_norm_backward" else sums[:1]
    launch = SOURCE.get(kernel, **variant)
    launch(
        grid,
        block,
        (
            gradient,
            rows,
            pointer(weight),
            *statistics,
            pointer(to_rows),
            *map(pointer, given),
            np.int64(count),
            np.int64(columns),
        ),
    )
    if any(needs[1:]):
        if sums[0] is None:  # one matrix: the first
            _add(variant, columns, parts, sums[1], None, to_vectors[1], None)
        else:
            _add(variant, columns, parts, sums[0], sums[1], to_vectors[0], to_vectors[1])
    return to_rows, to_vectors[0], to_vectors[1]


def _add(
    variant: dict[str, str],
    columns: int,
    parts: int,
    first: Array,
    second: Array | None,
    of_first: Array,
    of_second: Array | None,
) -> None:
    launch = SOURCE.get("add_parts", **variant)
    arguments = (first, pointer(second), of_first, pointer(of_second), np.int64(parts), np.int64(columns))
    launch((-(-columns // 32), 1 if second is None else 2), (32, 32), arguments)


def _weight_type(rows: Array, *vectors: Array | None) -> str:
    return next((cuda_type(vector.dtype) for vector in vectors if vector is not None), cuda_type(rows.dtype))
