"""Copies on the device between any two layouts, with conversion between floating point types: `copy`.

A plan, remembered by layouts, orders axes as the target lies and merges those that lie behind one another in both
arrays. Then memory is read and written in packs of 16 bytes where the fastest axis is the same in both, and through
squares in shared memory where it is not, so that both sides are read and written along their memory.
"""

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Prepared, Source, gpu_in_use
from engine.kernels.cuda.rows import aligned

Array = Any

_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "uint32", 8: "uint64", 16: "word16"}
# Conversions that round once. float64 and half precision: CuPy's own, which do not pass through float32.
_CONVERTED = [
    ("float32", "float64"),
    ("float64", "float32"),
    *(pair for half in ("float16", "bfloat16") for pair in (("float32", half), (half, "float32"))),
    ("float16", "bfloat16"),
    ("bfloat16", "float16"),
]
_CONVERSIONS = {
    (source, target): {"SOURCE": CUDA_TYPES[source], "ELEMENT": CUDA_TYPES[target]} for source, target in _CONVERTED
}
SOURCE = Source(
    "ops/copy/copy.cu",
    ["strided", "tiles"],
    [{"SOURCE": word, "ELEMENT": word} for word in _WORDS.values()] + list(_CONVERSIONS.values()),
    headers=["flat.cuh"],
)

_MOST_AXES = 8  # as in copy.cu
_TILE = 32
_TILES_FROM = 16  # elements of both axes
_THREADS = 256
_BLOCKS = 1 << 16

_LAYOUT = np.dtype(
    [*((name, np.int64, _MOST_AXES) for name in ("sizes", "from", "to")), ("axes", np.int32), ("unused", np.int32)]
)


def copy(target: Array, source: Array) -> None:
    """target[...] = source, for device arrays of one shape on one GPU that share no memory, on the current stream.

    Of any dtypes and strides; what there is no kernel for (conversions of integers, more than 8 axes that cannot be
    merged, strides that are no multiple of the element) CuPy copies.
    """
    if not target.size:
        return
    shape, types = target.shape, (source.dtype, target.dtype)
    plan = None
    if shape == source.shape:
        plan = prepared(shape, source.strides, target.strides, types, aligned(target, source), gpu_in_use())
    if plan is None:
        target[...] = source
    else:
        plan(source, target)


def fill_rows(target: Array, row: Array) -> None:
    """target[...] = row, for row-major memory (..., N) and a vector (N,)."""
    plan = plan_of_rows(target.shape, row.strides, row.dtype, target.dtype, aligned(target, row), gpu_in_use())
    if plan is not None:
        plan(row, target)
    elif target.size:
        target[...] = row


@lru_cache(4096)
def plan_of_rows(
    shape: tuple[int, ...], step: tuple[int], of_row: np.dtype, of_target: np.dtype, in_line: bool, gpu: int
) -> Prepared | None:
    """The launch of (row, target) for `fill_rows`; None where no kernel does it, or there are no elements."""
    count, columns = prod(shape[:-1]), shape[-1]
    target = (columns * of_target.itemsize, of_target.itemsize)
    return prepared((count, columns), (0, *step), target, (of_row, of_target), in_line, gpu) if prod(shape) else None


@lru_cache(65536)
def prepared(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    types: tuple[np.dtype, np.dtype],
    in_line: bool,
    gpu: int,
) -> Prepared | None:
    """The launch, of (source, target), that copies between two layouts of one shape with elements, strides in bytes;
    None where no kernel does it. in_line: whether both begin at multiples of 16 bytes.
    """
    size, target_size = types[0].itemsize, types[1].itemsize
    if types[0] == types[1]:
        word = _WORDS.get(size)
        macros = None if word is None else {"SOURCE": word, "ELEMENT": word}
    else:
        macros = _CONVERSIONS.get((types[0].name, types[1].name))
    if macros is None:
        return None
    if any(step % size for step in source) or any(step % target_size for step in target):
        return None
    axes = [
        (length, start // size, end // target_size)
        for length, start, end in zip(shape, source, target, strict=True)
        if length != 1
    ]
    axes.sort(key=lambda axis: (-abs(axis[2]), -abs(axis[1])))
    merged: list[tuple[int, int, int]] = []
    for length, start, end in axes:
        if merged and merged[-1][1] == start * length and merged[-1][2] == end * length:
            merged[-1] = (merged[-1][0] * length, start, end)
        else:
            merged.append((length, start, end))
    if len(merged) > _MOST_AXES:
        return None
    fastest = min(range(len(merged)), key=lambda axis: abs(merged[axis][1]) or 1 << 62, default=0)
    if (
        len(merged) > 1
        and fastest != len(merged) - 1
        and abs(merged[-1][2]) == 1
        and abs(merged[fastest][1]) == 1
        and min(merged[-1][0], merged[fastest][0]) >= _TILES_FROM
    ):
        batch = [axis for at, axis in enumerate(merged[:-1]) if at != fastest]
        order = [*batch, merged[fastest], merged[-1]]
        squares = -(-merged[fastest][0] // _TILE) * -(-merged[-1][0] // _TILE)
        count = squares * int(np.prod([axis[0] for axis in batch], dtype=np.int64))
        constants: tuple[Any, ...] = (_packed(order), np.int64(count))
        return SOURCE.prepare("tiles", macros, (min(count, _BLOCKS),), (_TILE, 8), constants)
    pack = 16 // max(size, target_size)
    wide = bool(merged) and in_line and merged[-1][1:] == (1, 1) and merged[-1][0] % pack == 0
    wide = wide and all(step % pack == 0 for axis in merged[:-1] for step in axis[1:])
    if wide:
        length, _, _ = merged[-1]
        merged[-1] = (length // pack, pack, pack)
    count = int(np.prod([axis[0] for axis in merged], dtype=np.int64))
    constants = (_packed(merged), np.int64(count), np.bool_(wide))
    return SOURCE.prepare("strided", macros, (min(-(-count // _THREADS), _BLOCKS),), (_THREADS,), constants)


def _packed(axes: list[tuple[int, int, int]]) -> np.ndarray:
    layout = np.zeros((), _LAYOUT)
    for at, (length, start, end) in enumerate(axes):
        layout["sizes"][at], layout["from"][at], layout["to"][at] = length, start, end
    layout["axes"] = len(axes)
    return layout
