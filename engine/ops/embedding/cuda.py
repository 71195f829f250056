"""Rows of a table by index on the device, and the adjoint: grids and blocks of `embedding.cu`."""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.kernels.cuda.rows import flat_grid, macros, pointer, variants, width, work_type
from engine.memory import backend

Array = Any

SOURCE = Source(
    "ops/embedding/embedding.cu",
    ["look_up", "keys_of", "count_digits", "sums_before", "sort_by_digit", "add_rows", "join_runs"],
    variants(),
    headers=["rows.cuh"],
)

# As in embedding.cu.
_DIGITS, _DIGIT_BITS = 256, 8
_SORTED_A_BLOCK = 2048
_ROWS_A_CHUNK = 32


def look_up(table: Array, index: Array) -> Array:
    """(count, columns): the rows of a table (rows, columns) at `index` (count,) int64; NaN where it is outside."""
    rows, columns = table.shape
    out = backend.require_cupy().empty((index.size, columns), table.dtype)
    if out.size:
        elements = width(columns, table, out)
        packs = columns // elements
        launch = SOURCE.get("look_up", **macros(elements, table))
        sizes = map(np.int64, (index.size, rows, packs))
        launch(*flat_grid(index.size * packs), (table, index, out, *sizes))
    return out


def add_rows(values: Array, index: Array, rows: int, padding: int = -1, by_frequency: bool = False) -> Array:
    """(rows, columns): zeros to which row i of values (count, columns) is added at index[i] (int64).

    Rows at `padding`, or outside, go nowhere; `by_frequency` divides each row by how often its index occurs. Sums are
    in float32 for half types, in the order of the rows. At most 2**31 - 1 values and rows.
    """
    cupy = backend.require_cupy()
    count, columns = values.shape
    assert count < 2**31
    assert rows < 2**31
    table = cupy.zeros((rows, columns), values.dtype)
    if not values.size or not rows:
        return table
    keys, positions = _sorted(index, rows, padding, values)
    elements = width(columns, values, table)
    variant = macros(elements, values)
    chunks = -(-count // _ROWS_A_CHUNK)
    heads, tails = (cupy.empty((chunks, columns), work_type(values)) for _ in range(2))
    packs = columns // elements
    sizes = (*map(np.int64, (count, rows, packs)), np.int32(by_frequency))
    block = (min(256, max(32, -(-packs // 32) * 32)),)
    SOURCE.get("add_rows", **variant)((chunks,), block, (values, keys, positions, table, heads, tails, *sizes))
    if chunks > 1:
        SOURCE.get("join_runs", **variant)((chunks,), block, (keys, table, heads, tails, *sizes))
    return table


def _sorted(index: Array, rows: int, padding: int, like: Array) -> tuple[Array, Array]:
    """Indices, `rows` standing for what goes nowhere, in ascending order (uint32), and where they were (int32)."""
    cupy = backend.require_cupy()
    count = index.size
    variant = macros(1, like)
    keys = cupy.empty(count, np.uint32)
    SOURCE.get("keys_of", **variant)(
        *flat_grid(count), (index, keys, np.int64(count), np.int64(rows), np.int64(padding))
    )
    positions = None
    blocks = -(-count // _SORTED_A_BLOCK)
    places = cupy.empty(_DIGITS * blocks, np.int32)
    count_digits, sums_before, sort_by_digit = (
        SOURCE.get(name, **variant) for name in ("count_digits", "sums_before", "sort_by_digit")
    )
    for shift in range(0, rows.bit_length(), _DIGIT_BITS):
        count_digits((blocks,), (_DIGITS,), (keys, places, np.int64(count), np.int32(shift)))
        sums_before((1,), (1024,), (places, np.int64(places.size)))
        sorted_keys, sorted_positions = cupy.empty(count, np.uint32), cupy.empty(count, np.int32)
        arrays = (keys, pointer(positions), places, sorted_keys, sorted_positions)
        sort_by_digit((blocks,), (_DIGITS,), (*arrays, np.int64(count), np.int32(shift)))
        keys, positions = sorted_keys, sorted_positions
    return keys, positions
