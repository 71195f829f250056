"""Copies on the device between any two layouts, with conversion between floating point types: `copy`.

A plan, remembered by layouts, orders axes as the target lies and merges those that lie behind one another in both
arrays. Then memory is read and written in packs of 16 bytes where the fastest axis is the same in both, and through
squares in shared memory where it is not, so that both sides are read and written along their memory.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source

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


class _Plan(NamedTuple):
    kernel: str
    layout: np.ndarray
    units: int  # elements, packs or tiles
    wide: bool
    grid: tuple[int]
    block: tuple[int, ...]


def copy(target: Array, source: Array) -> None:
    """target[...] = source, for device arrays of one shape on one GPU that share no memory, on the current stream.

    Of any dtypes and strides; what there is no kernel for (conversions of integers, more than 8 axes that cannot be
    merged, strides that are no multiple of the element) CuPy copies.
    """
    if not target.size:
        return
    if target.dtype == source.dtype:
        word = _WORDS.get(target.dtype.itemsize)
        macros = None if word is None else {"SOURCE": word, "ELEMENT": word}
    else:
        macros = _CONVERSIONS.get((source.dtype.name, target.dtype.name))
    sizes = source.dtype.itemsize, target.dtype.itemsize
    aligned = target.data.ptr % 16 == 0 and source.data.ptr % 16 == 0
    plan = None
    if macros is not None and target.shape == source.shape:
        plan = _plan(tuple(target.shape), tuple(source.strides), tuple(target.strides), *sizes, aligned)
    if macros is None or plan is None:
        target[...] = source
        return
    arguments: tuple[Any, ...] = (source, target, plan.layout, np.int64(plan.units))
    if plan.kernel == "strided":
        arguments += (np.bool_(plan.wide),)
    SOURCE.get(plan.kernel, **macros)(plan.grid, plan.block, arguments)


@lru_cache(65536)
def _plan(
    shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], size: int, target_size: int, aligned: bool
) -> _Plan | None:
    """How to copy between two layouts, strides in bytes; None where no kernel does it."""
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
        return _Plan("tiles", _packed(order), count, False, (min(count, _BLOCKS),), (_TILE, 8))
    pack = 16 // max(size, target_size)
    wide = bool(merged) and aligned and merged[-1][1:] == (1, 1) and merged[-1][0] % pack == 0
    wide = wide and all(step % pack == 0 for axis in merged[:-1] for step in axis[1:])
    if wide:
        length, _, _ = merged[-1]
        merged[-1] = (length // pack, pack, pack)
    count = int(np.prod([axis[0] for axis in merged], dtype=np.int64))
    return _Plan("strided", _packed(merged), count, wide, (min(-(-count // _THREADS), _BLOCKS),), (_THREADS,))


def _packed(axes: list[tuple[int, int, int]]) -> np.ndarray:
    layout = np.zeros((), _LAYOUT)
    for at, (length, start, end) in enumerate(axes):
        layout["sizes"][at], layout["from"][at], layout["to"][at] = length, start, end
    layout["axes"] = len(axes)
    return layout
