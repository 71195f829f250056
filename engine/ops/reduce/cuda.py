"""Sums of the columns of a matrix on the device, as the gradients of biases are: grids and blocks of `reduce.cu`."""

from functools import lru_cache
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Prepared, Source, gpu_in_use
from engine.kernels.cuda.rows import accesses, aligned, variant, variants, work_type
from engine.memory import backend

Array = Any

SOURCE = Source("ops/reduce/reduce.cu", ["add_rows", "add_parts"], variants(), headers=["rows.cuh"])

_BLOCKS = 1024  # about so many blocks share a matrix
_ROWS_A_PART = 64  # at least


def column_sums(rows: Array) -> Array:
    """(N,): sums of the columns of (M, N), row-major, of a floating point dtype; half types are summed in float32."""
    dtype = rows.dtype
    count, columns = rows.shape
    if not rows.size:
        return backend.require_cupy().zeros(columns, dtype)
    add_rows, parts, add_parts = _plan(count, columns, dtype, aligned(rows), gpu_in_use())
    empty = backend.device_empty
    if add_parts is None:
        sums = empty((columns,), dtype)
        add_rows(rows, sums)
        return sums
    sums = empty((parts, columns), work_type(rows))
    add_rows(rows, sums)
    out = empty((columns,), dtype)
    add_parts(sums, out)
    return out


@lru_cache(4096)
def _plan(count: int, columns: int, dtype: np.dtype, in_line: bool, gpu: int) -> tuple[Prepared, int, Prepared | None]:
    """What adds up parts of the rows, how many parts, and what adds up these; None where one part is the result."""
    elements = accesses(columns, dtype.itemsize, in_line)
    packs = columns // elements
    wide = 32 if packs > 16 else 16 if packs > 8 else 8
    across = -(-packs // wide)
    a_part = max(_ROWS_A_PART, -(-count * across // _BLOCKS))
    parts = -(-count // a_part)
    macros = variant(elements, dtype)
    sizes = list(map(np.int64, (count, columns, a_part)))
    add_rows = SOURCE.prepare("add_rows", macros, (across, parts), (wide, 256 // wide), sizes)
    if parts == 1 and dtype.itemsize > 2:
        return add_rows, parts, None
    sizes = list(map(np.int64, (parts, columns)))
    return add_rows, parts, SOURCE.prepare("add_parts", macros, (-(-columns // 32),), (32, 32), sizes)
