"""Sums of the columns of a matrix on the device, as the gradients of biases are: grids and blocks of `reduce.cu`."""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.kernels.cuda.rows import macros, variants, width, work_type
from engine.memory import backend

Array = Any

SOURCE = Source("ops/reduce/reduce.cu", ["add_rows", "add_parts"], variants(), headers=["rows.cuh"])

_BLOCKS = 1024  # about so many blocks share a matrix
_ROWS_A_PART = 64  # at least


def column_sums(rows: Array) -> Array:
    """(N,): sums of the columns of (M, N), row-major, of a floating point dtype; half types are summed in float32."""
    cupy = backend.require_cupy()
    count, columns = rows.shape
    if not rows.size:
        return cupy.zeros(columns, rows.dtype)
    elements = width(columns, rows)
    packs = columns // elements
    wide = 32 if packs > 16 else 16 if packs > 8 else 8
    across = -(-packs // wide)
    a_part = max(_ROWS_A_PART, -(-count * across // _BLOCKS))
    parts = -(-count // a_part)
    sums = cupy.empty((parts, columns), work_type(rows))
    variant = macros(elements, rows)
    sizes = map(np.int64, (count, columns, a_part))
    SOURCE.get("add_rows", **variant)((across, parts), (wide, 256 // wide), (rows, sums, *sizes))
    if parts == 1 and sums.dtype == rows.dtype:
        return sums.reshape(columns)
    out = cupy.empty(columns, rows.dtype)
    arguments = (sums, out, np.int64(parts), np.int64(columns))
    SOURCE.get("add_parts", **variant)((-(-columns // 32),), (32, 32), arguments)
    return out
