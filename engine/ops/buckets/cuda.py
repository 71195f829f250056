"""What is done to buckets of gradients on the device: sums over ranks, scaling, clipping, norms, 8-bit compression.

Arrays are one-dimensional and contiguous. float16 and bfloat16 are computed in float32 and rounded once. Nothing here
waits for the device; tables of arrays travel as kernel arguments, so nothing is copied to it either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Source, cuda_type
from engine.kernels.cuda.rows import pointer
from engine.memory import backend

Array = Any

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_OF_ANY = ["sum_slices"]
_OF_FLOATS = [
    *("scale", "clamp", "partial_norms", "finish_norm", "largest_magnitudes", "quantise", "dequantised_mean"),
]
SOURCE = Source(
    "ops/buckets/buckets.cu",
    [*_OF_ANY, *_OF_FLOATS],
    [{"ELEMENT": CUDA_TYPES[name]} for name in (*FLOATS, *INTEGERS)],
    headers=["flat.cuh"],
    contract=False,
)

MOST_RANKS = 64  # as in buckets.cu, both
MOST_ARRAYS = 128
_THREADS = 256
_BLOCKS = 1 << 13  # at most, of kernels that go on in strides of the grid
_PIECE = 4096  # elements of a block of 8-bit numbers that a block of threads serves

_RANKS = np.dtype(
    [
        ("addends", np.uint64, MOST_RANKS),
        ("targets", np.uint64, MOST_RANKS),
        ("weights", np.float64, MOST_RANKS),
        ("addend_count", np.int32),
        ("target_count", np.int32),
    ]
)
_ARRAYS = np.dtype([("addresses", np.uint64, MOST_ARRAYS), ("sizes", np.int64, MOST_ARRAYS)])
_SCALES = np.dtype([("addresses", np.uint64, MOST_RANKS)])


def _blocks(elements: int) -> tuple[int]:
    return (min(max(-(-elements // _THREADS), 1), _BLOCKS),)


def _as_reals(array: Array) -> Array:
    """Complex numbers are pairs of real ones."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def prepare_sum(addends: Sequence[Array], targets: Sequence[Array]) -> Callable[[float, Sequence[float] | None], None]:
    """`run(divisor=1.0, weights=None)`: writes the sum of the addends, over the divisor, to every target.

    addends: one array of shape (n,) a rank, in rank order, all of one dtype; targets: arrays of shape (n,), which may
    be addends, but not overlap them shifted. They may be memory of other GPUs or processes that this one maps, and are
    kept alive by `run`. weights: what each addend is multiplied with; an addend of weight 0 is not read. Added in rank
    order, divided once, rounded once: the bits of `ddp.transport.summing`. Queued on the current stream.
    Raises: ValueError for arrays that differ or for more than 64 ranks.
    """
    first = addends[0]
    for array in (*addends, *targets):
        if array.dtype != first.dtype or array.shape != first.shape or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(
                f"sum of slices: expected contiguous arrays of {first.dtype} and shape {first.shape}, got "
                f"{array.dtype} and {array.shape}"
            )
    if max(len(addends), len(targets)) > MOST_RANKS:
        raise ValueError(f"sum of slices: at most {MOST_RANKS} ranks on a node, got {max(len(addends), len(targets))}")
    kept = [_as_reals(array) for array in addends], [_as_reals(array) for array in targets]
    count, kind = kept[0][0].size, kept[0][0].dtype
    ranks = np.zeros((), _RANKS)
    _fill(ranks["addends"], kept[0])
    _fill(ranks["targets"], kept[1])
    ranks["addend_count"], ranks["target_count"] = len(addends), len(targets)
    wide = all(backend.address(array) % 16 == 0 for arrays in kept for array in arrays)
    launch = SOURCE.get("sum_slices", ELEMENT=cuda_type(kind))
    grid = _blocks(count * kind.itemsize // 16 if wide else count)

    def run(divisor: float = 1.0, weights: Sequence[float] | None = None) -> None:
        assert kept  # as long as this function
        table = ranks
        if weights is not None:
            table = ranks.copy()
            table["weights"][: len(weights)] = weights
        if count:
            arguments = (table, np.int64(count), np.float64(divisor), np.bool_(weights is not None), np.bool_(wide))
            launch(grid, (_THREADS,), arguments)

    return run


def _fill(addresses: np.ndarray, arrays: Sequence[Array]) -> None:
    addresses[: len(arrays)] = [backend.address(array) for array in arrays]


def _in_tables(arrays: Sequence[Array]) -> list[tuple[str, np.ndarray, tuple[int, int], list[Array]]]:
    """Launches for arrays of any dtypes and number: (dtype's name, table, grid, arrays)."""
    by_type: dict[str, list[Array]] = {}
    for array in arrays:
        flat = _as_reals(array)
        if flat.size:
            by_type.setdefault(flat.dtype.name, []).append(flat)
    launches = []
    for name, alike in by_type.items():
        for start in range(0, len(alike), MOST_ARRAYS):
            part = alike[start : start + MOST_ARRAYS]
            table = np.zeros((), _ARRAYS)
            _fill(table["addresses"], part)
            table["sizes"][: len(part)] = [array.size for array in part]
            accesses = max(array.size for array in part) * part[0].dtype.itemsize // 16
            blocks = min(_blocks(accesses)[0], max(_BLOCKS // len(part), 1))
            launches.append((name, table, (blocks, len(part)), part))
    return launches


def scale(
    arrays: Sequence[Array], factor: float = 1.0, by: Array | None = None, found_inf: Array | None = None
) -> None:
    """Multiplies all arrays, of any real or complex floating dtypes, with factor · by, in place.

    by: float32 or float64 device array with one element, read on the device. found_inf: the same in float32; becomes 1
    if any element is infinite or NaN, else stays as it is.
    """
    single = by if by is not None and by.dtype == np.float32 else None
    twofold = by if by is not None and by.dtype == np.float64 else None
    assert by is None or single is not None or twofold is not None
    for name, table, grid, _ in _in_tables(arrays):
        launch = SOURCE.get("scale", ELEMENT=CUDA_TYPES[name])
        launch(grid, (_THREADS,), (table, np.float64(factor), pointer(single), pointer(twofold), pointer(found_inf)))


def clamp(arrays: Sequence[Array], limit: float) -> None:
    """Brings every element into [-limit, limit], in place; NaN stays NaN."""
    for name, table, grid, _ in _in_tables(arrays):
        SOURCE.get("clamp", ELEMENT=CUDA_TYPES[name])(grid, (_THREADS,), (table, np.float64(limit)))


def norm(arrays: Sequence[Array], power: int = 2) -> Array:
    """The norm of all elements of all arrays, a float64 device array (1,): power 2 (Euclidean), 1, or 0 for the largest
    magnitude. Of complex numbers, power 2 only. Accumulated in float64 in an order that depends on the sizes only.
    """
    cupy = backend.require_cupy()
    launches = _in_tables(arrays)
    ends = np.cumsum([0, *(grid[0] * grid[1] for _, _, grid, _ in launches)]).tolist()
    partial = cupy.empty(max(ends[-1], 1), np.float64)
    for (name, table, grid, _), start in zip(launches, ends[:-1], strict=True):
        launch = SOURCE.get("partial_norms", ELEMENT=CUDA_TYPES[name])
        launch(grid, (_THREADS,), (table, np.int32(power), partial[start:]))
    result = cupy.empty(1, np.float64)
    SOURCE.get("finish_norm", ELEMENT="float")(
        (1,), (_THREADS,), (partial, np.int64(ends[-1]), np.int32(power), result)
    )
    return result


def quantise(values: Array, length: int) -> tuple[Array, Array]:
    """8 bits an element: (scales float32 (rows,), levels int8 (rows · length,)) of `values` in rows of `length`.

    A row's scale is its largest magnitude / 127; an element is scale · level; elements after the end are 0. A row with
    an infinity or NaN gets such a scale, and is NaN again in `dequantised_mean`. Source: see ddp.hooks.gathered.
    """
    cupy = backend.require_cupy()
    rows = -(-values.size // length)
    piece = min(length, _PIECE)
    parts = -(-length // piece)
    scales, levels = cupy.empty(rows, np.float32), cupy.empty(rows * length, np.int8)
    if rows:
        largest = cupy.empty(rows * parts, np.float32)
        sizes = tuple(map(np.int64, (values.size, length, piece, parts, rows * parts)))
        grid, macros = (min(rows * parts, _BLOCKS),), {"ELEMENT": cuda_type(values.dtype)}
        SOURCE.get("largest_magnitudes", **macros)(grid, (_THREADS,), (values, *sizes, largest))
        SOURCE.get("quantise", **macros)(grid, (_THREADS,), (values, *sizes, largest, scales, levels))
    return scales, levels


def dequantised_mean(
    scales: Sequence[Array], levels: Sequence[Array], weights: Sequence[float], length: int, out: Array
) -> None:
    """out (n,) = Σ weight · scale · level / Σ weight over the ranks, in rank order in float32.

    Ranks of weight 0 are not read.
    """
    ranks, addresses = np.zeros((), _RANKS), np.zeros((), _SCALES)
    _fill(ranks["addends"], levels)
    _fill(ranks["targets"], [out])
    _fill(addresses["addresses"], scales)
    ranks["weights"][: len(weights)] = weights
    ranks["addend_count"], ranks["target_count"] = len(levels), 1
    if out.size:
        launch = SOURCE.get("dequantised_mean", ELEMENT=cuda_type(out.dtype))
        divisor = np.float64(sum(weights) or 1.0)
        launch(_blocks(out.size), (_THREADS,), (ranks, addresses, np.int64(out.size), np.int64(length), divisor))
