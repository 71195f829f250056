"""Grids, blocks and macros of kernels that include `rows.cuh`, and what their callers pass."""

from functools import cache
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, cuda_type

Array = Any

NOTHING = np.uint64(0)  # a null pointer, for an array that is not there

FLOATS = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_CACHED = 4  # as in rows.cuh
_WARP_AT_MOST = 32 * _CACHED  # accesses of a row that a warp keeps in registers
_GRID_AT_MOST = 2**31 - 1
_BLOCKS_AT_MOST = 1 << 16  # of kernels over flat memory


def variants(**more: str) -> list[dict[str, str]]:
    """ELEMENT and WIDTH of every floating point type: accesses of one element and of 16 bytes."""
    return [
        {"ELEMENT": CUDA_TYPES[name], "WIDTH": str(width), **more}
        for name, size in FLOATS.items()
        for width in (1, 16 // size)
    ]


def work_type(array: Array) -> Any:
    """The dtype in which an array's statistics are kept: float32 for the half types, else its own."""
    return np.dtype(np.float32) if array.dtype.itemsize == 2 else array.dtype


def width(columns: int, *arrays: Array) -> int:
    """Elements an access: 16 bytes of the first array where rows of `columns` are aligned for that in all, else 1."""
    elements = 16 // arrays[0].dtype.itemsize
    if columns % elements or any(
        array is not None and array.data.ptr % (elements * array.dtype.itemsize) for array in arrays
    ):
        return 1
    return elements


def aligned(*arrays: Array) -> bool:
    """Whether all (None: one that is not there) begin at multiples of 16 bytes."""
    bits = 0
    for array in arrays:
        if array is not None:
            bits |= array.data.ptr
    return not bits & 15


def accesses(columns: int, itemsize: int, in_line: bool) -> int:
    """Elements an access: 16 bytes where rows of `columns` elements allow that and the first is `aligned`, else 1."""
    elements = 16 // itemsize
    return elements if in_line and columns % elements == 0 else 1


def macros(elements: int, array: Array, **more: str) -> dict[str, str]:
    """The variant for the element type of an array; not to be changed."""
    found = variant(elements, array.dtype)
    return {**found, **more} if more else found


@cache
def variant(elements: int, dtype: np.dtype) -> dict[str, str]:
    """The same by the dtype alone."""
    return {"ELEMENT": cuda_type(dtype), "WIDTH": str(elements)}


def shape(rows: int, accesses: int, threads: int) -> tuple[tuple[int], tuple[int, int]]:
    """(grid, block) for rows of so many accesses: a warp a row, or blocks of up to `threads`, a row each."""
    if accesses <= _WARP_AT_MOST:
        return (min(-(-rows // 4), _GRID_AT_MOST),), (32, 4)
    wanted = -(-accesses // 64) * 32  # two accesses a thread
    return (min(rows, _GRID_AT_MOST),), (min(max(wanted, 64), threads), 1)


def flat_grid(threads: int, a_block: int = 256) -> tuple[tuple[int], tuple[int]]:
    """(grid, block) of so many threads; each goes on in strides of the grid where these are more than a grid has."""
    return (min(max(-(-threads // a_block), 1), _BLOCKS_AT_MOST),), (a_block,)


def pointer(array: Array | None) -> Any:
    """The array, or a null pointer for None."""
    return NOTHING if array is None else array
