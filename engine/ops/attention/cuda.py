"""Attention on the device: what `attention.cu` and `attention_backward.cu` are compiled for, grids, places in memory.

Arrays are (..., positions, width) of one dtype, float32, float16 or bfloat16, in any strides; leading axes broadcast.
Sums are in float32. Queries and keys are compared on tensor cores for the half types, for float32 with `tf32`, else on
the ordinary units. Memory beside the results: the logarithm of each row's sum, and one number more a row in backward.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Prepared, Source, gpu_in_use, prepared
from engine.kernels.cuda.limits import TENSOR_CORES, limits, ready
from engine.kernels.cuda.rows import NOTHING, aligned, pointer
from engine.memory import backend
from engine.ops.attention import cudnn
from engine.ops.attention.results import positions_first
from engine.rules.precision import matmul as settings
from engine.rules.spec import Spec

Array = Any
Axes = tuple[int, ...]
Results = tuple[Array, Array, None]

_FLOAT32 = np.dtype(np.float32)
_NAMES = ("float32", "float16", "bfloat16")
_HEADS = (32, 64, 128, 256)  # elements of a row in shared memory, at least the widths of operands
_HEADERS = ["philox.cuh", "mma.cuh", "ops/attention/attention_dropout.cuh", "ops/attention/attention.cuh"]


class Plan(NamedTuple):
    """Macros and shared memory of one kind of call."""

    forward: dict[str, str]
    backward: dict[str, str]
    queries: int  # of a tile in forward
    tile: int  # positions of a tile in backward
    threads: int
    forward_bytes: int
    query_bytes: int
    key_bytes: int
    chunks: int


@lru_cache
def _plan(name: str, tf32: bool, head: int, masked: bool) -> Plan:
    """Shapes of tiles, such that ptxas for sm_80 and sm_90 keeps sums in registers. Calls without masks have a
    variant of their own for half precision rows of up to 128 elements.
    """
    size = 4 if name == "float32" else 2
    masked = masked or size == 4 or head == 256
    product = "Tensor" if size == 2 else "Tf32" if tf32 else "Simt"
    warps = 2 if size == 4 and head >= 128 else 4
    tiles = 2 if head <= 64 and not masked else 1
    keys = (64 if size == 2 else 32) if head < 256 else 64 // size
    others = 64 if head == 32 else 32 if head < 256 else 16
    chunk = min(head, 128 if size == 2 else 64)
    stages = 2 if size == 2 else 1
    common = {
        "ELEMENT": CUDA_TYPES[name],
        "PRODUCT": product,
        "HEAD": str(head),
        "WARPS": str(warps),
        "MASKED": str(int(masked)),
    }
    row = head * size + 16
    scratch = 4 * warps if product == "Simt" else 0
    queries, tile = 16 * tiles * warps, 16 * warps
    return Plan(
        {**common, "TILES": str(tiles), "KEYS": str(keys)},
        {**common, "OTHERS": str(others), "CHUNK": str(chunk), "STAGES": str(stages)},
        queries,
        tile,
        32 * warps,
        (queries + 2 * keys) * row + scratch * 16 * tiles * (keys + 4),
        2 * (tile + stages * others) * row + scratch * 16 * (others + 4),
        2 * (tile + stages * others) * row + stages * 8 * others + scratch * 16 * (others + 4),
        head // chunk,
    )


_PLANS = [
    _plan(name, tf32, head, masked)
    for name in _NAMES
    for tf32 in ((False, True) if name == "float32" else (False,))
    for head in _HEADS
    for masked in ((False, True) if name != "float32" and head < 256 else (True,))
]
FORWARD = Source("ops/attention/attention.cu", ["attention"], [plan.forward for plan in _PLANS], headers=_HEADERS)
BACKWARD = Source(
    "ops/attention/attention_backward.cu",
    ["attention_of_query", "attention_of_key"],
    [plan.backward for plan in _PLANS],
    headers=_HEADERS,
)
DRAWS = Source(
    "ops/attention/attention_draws.cu",
    ["draw", "keep_mask"],
    [{}],
    headers=["philox.cuh", "ops/attention/attention_dropout.cuh"],
)


def serves(*arrays: Array) -> bool:
    """Whether the kernels are there for these queries, keys and values: dtype, width, and a device of compute
    capability 8.0 or more with enough shared memory.
    """
    return serves_shapes(arrays[0].dtype, tuple([array.shape for array in arrays]), gpu_in_use())


@lru_cache(4096)
def serves_shapes(dtype: np.dtype, shapes: tuple[Axes, ...], gpu: int) -> bool:
    """The same by shapes alone, for the GPU in use."""
    if dtype.name not in _NAMES or not all(map(prod, shapes)):
        return False
    widest = max(shape[-1] for shape in shapes)
    if widest > _HEADS[-1]:
        return False
    plan = _plan(dtype.name, False, _head(widest), True)
    capability, shared = limits()
    return capability >= TENSOR_CORES and max(plan.forward_bytes, plan.query_bytes, plan.key_bytes) <= shared


def forward(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    draws: Array | None,
    out: Array,
    causal: bool,
    scale: float,
    kept_scale: float,
    tf32: bool,
) -> Array:
    """Fills `out` (..., L, V), whose leading axes are the broadcast ones; returns the logarithms of the rows' sums,
    float32 (..., L).

    mask: bool, or of the operands' dtype, broadcasting to (..., L, S); draws: uint64 (2,) from `draw`, with dropout.
    """
    dtype = query.dtype
    assert dtype == key.dtype == value.dtype == out.dtype
    query, key, value = map(_with_neighbours, (query, key, value))
    log_sums = backend.device_empty(out.shape[:-1], _FLOAT32)
    launch = _forward_plan(
        _layouts(query, key, value, out, mask), dtype, _mask_kind(mask), not (mask is None is draws),
        causal, scale, kept_scale, tf32, aligned(query, key, value, out), gpu_in_use(),
    )  # fmt: skip
    launch(query, key, value, pointer(mask), pointer(draws), out, log_sums)
    return log_sums


def planned_forward(
    query: Spec, key: Spec, value: Spec, mask: Spec | None, out: Spec, draws: bool, causal: bool, scale: float,
    kept_scale: float,
) -> Callable[..., Results] | None:  # fmt: skip
    """`forward` of operands that lie so, with at most three leading axes: a function of query, key, value, mask and
    draws that returns the result, laid out as `out` says, the memory of the logarithms (an array on it, which takes the
    host 0.8 µs, is made where there is a backward), and None for what the CPU keeps besides. None where operands would
    be copied.
    """
    dtype = query.dtype.numpy
    if len(out.shape) > 5 or any(each.shape[-1] > 1 and each.stride[-1] != 1 for each in (query, key, value)):
        return None
    layouts = tuple([
        None if each is None else (tuple(each.shape), tuple(each.byte_strides), each.dtype.itemsize)
        for each in (query, key, value, out, mask)
    ])  # fmt: skip
    kind = 0 if mask is None else 1 if mask.dtype.numpy == np.bool_ else 2
    masked = mask is not None or draws
    (sizes, axes), size = out.allocation, prod(out.shape[:-1]) * _FLOAT32.itemsize
    empty, allocate = backend.device_empty, backend.require_cupy().cuda.alloc
    launches: dict[tuple[bool, bool], Prepared] = {}
    nothing = backend.constant(NOTHING)

    def run(query: Array, key: Array, value: Array, mask: Array | None, draws: Array | None) -> Results:
        made = empty(sizes, dtype)
        if axes is not None:
            made = made.transpose(axes)
        log_sums = allocate(size)
        # new memory is aligned
        which = not (query.data.ptr | key.data.ptr | value.data.ptr) & 15, settings.allow_tf32
        launch = launches.get(which)
        if launch is None:
            in_line, tf32 = which
            launch = launches[which] = _forward_plan(
                layouts, dtype, kind, masked, causal, scale, kept_scale, tf32, in_line, gpu_in_use()
            )
        launch(query, key, value, nothing if mask is None else mask, nothing if draws is None else draws, made,
               log_sums)  # fmt: skip
        return made, log_sums, None

    return run


@lru_cache(4096)
def _forward_plan(
    layouts: tuple[Any, ...],
    dtype: np.dtype,
    mask_kind: int,
    masked: bool,
    causal: bool,
    scale: float,
    kept_scale: float,
    tf32: bool,
    in_line: bool,
    gpu: int,
) -> Prepared:
    query, _, value, out, _ = layouts
    plan = _plan(dtype.name, tf32, _head(max(query[0][-1], value[0][-1])), masked)
    numbers = (mask_kind, causal, _vectors(layouts[:4], in_line)), (scale, kept_scale)
    count, call = _call(numbers, None, out[0][:-2], *layouts)
    kernel = ready(FORWARD, "attention", plan.forward, plan.forward_bytes)
    return prepared(kernel, (count * -(-query[0][-2] // plan.queries),), (plan.threads,), (call,), plan.forward_bytes)


def backward(
    slope: Array,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    draws: Array | None,
    out: Array,
    log_sums: Array,
    causal: bool,
    scale: float,
    kept_scale: float,
    tf32: bool,
) -> tuple[Array, Array, Array]:
    """The gradients of query, key and value from that of `out`, with the leading axes of `out`; where key and value are
    both shared along the last of these, it has size 1 in theirs. Positions lie outside heads in their memory.
    """
    dtype = query.dtype
    assert slope.dtype == dtype
    query, key, value, out, slope = map(_with_neighbours, (query, key, value, out, slope))
    batch = out.shape[:-2]
    shared = batch[-1] if batch and all(_is_shared(each, batch) for each in (key, value)) else 1
    few = (*batch[:-1], batch[-1] // shared) if batch else batch
    of_query = positions_first(backend.device_empty, (*batch, *query.shape[-2:]), dtype)
    of_key = positions_first(backend.device_empty, (*few, *key.shape[-2:]), dtype)
    of_value = positions_first(backend.device_empty, (*few, *value.shape[-2:]), dtype)
    found = of_query, of_key, of_value
    if mask is None and draws is None and cudnn.backward(slope, query, key, value, out, log_sums, found, causal, scale):
        return found
    deltas = backend.device_empty(log_sums.shape, _FLOAT32)
    launch_of_query, launch_of_key = _backward_plans(
        _layouts(query, key, value, out, slope, of_query, of_key, of_value, mask), dtype, shared, _mask_kind(mask),
        not (mask is None is draws), causal, scale, kept_scale, tf32, aligned(query, key, value, out, slope),
        gpu_in_use(),
    )  # fmt: skip
    masks = pointer(mask), pointer(draws)
    launch_of_query(query, key, value, *masks, out, slope, log_sums, deltas, of_query)
    launch_of_key(query, key, value, *masks, slope, log_sums, deltas, of_key, of_value)
    return found


@lru_cache(4096)
def _backward_plans(
    layouts: tuple[Any, ...],
    dtype: np.dtype,
    shared: int,
    mask_kind: int,
    masked: bool,
    causal: bool,
    scale: float,
    kept_scale: float,
    tf32: bool,
    in_line: bool,
    gpu: int,
) -> tuple[Prepared, Prepared]:
    query, key, value, out, slope, of_query, of_key, of_value, mask = layouts
    plan = _plan(dtype.name, tf32, _head(max(query[0][-1], value[0][-1])), masked)
    batch = out[0][:-2]
    vectors = _vectors(layouts[:5], in_line)
    numbers = (mask_kind, causal, vectors), (scale, kept_scale)
    count, call = _call(numbers, None, batch, query, key, value, out, slope, of_query, mask)
    kernel = ready(BACKWARD, "attention_of_query", plan.backward, plan.query_bytes)
    grid = (count * -(-query[0][-2] // plan.tile),)
    launch_of_query = prepared(kernel, grid, (plan.threads,), (call,), plan.query_bytes)
    count, call = _call(numbers, shared, batch, query, key, value, slope, of_key, of_value, mask)
    kernel = ready(BACKWARD, "attention_of_key", plan.backward, plan.key_bytes)
    places = (count // shared * -(-key[0][-2] // plan.tile), plan.chunks)
    return launch_of_query, prepared(kernel, places, (plan.threads,), (call,), plan.key_bytes)


def draw(state: tuple[np.uint64, np.uint64, np.uint64]) -> Array:
    """{seed, offset} as a uint64 array (2,), from what `DeviceGenerator.draw` gave."""
    draws = backend.require_cupy().empty(2, np.uint64)
    DRAWS.get("draw")((1,), (1,), (draws, *state))
    return draws


def keep_mask(draws: Array, shape: Axes, kept_scale: float) -> Array:
    """The bool mask of dropout in whole, of the scores' shape."""
    kept = backend.require_cupy().empty(shape, np.bool_)
    if kept.size:
        grid = (min(-(-kept.size // 256), 4096),)
        rows = np.int64(prod(shape[:-1]))
        DRAWS.get("keep_mask")((*grid,), (256,), (draws, kept, rows, np.int64(shape[-1]), np.float32(kept_scale)))
    return kept


# --- places in memory -------------------------------------------------------------------------------------------------


def _head(width: int) -> int:
    return next(size for size in _HEADS if width <= size)


def _layouts(*arrays: Array | None) -> tuple[tuple[Axes, Axes, int] | None, ...]:
    return tuple([None if array is None else (array.shape, array.strides, array.itemsize) for array in arrays])


def _call(
    numbers: tuple[tuple[int, ...], tuple[float, ...]], shared: int | None, batch: Axes, *layouts: Any
) -> tuple[int, np.ndarray]:
    """How many heads there are, and a kernel's last argument: sizes of the middle and the inner axis of heads, how many
    share keys and values (None where the kernel does not ask), the steps of each operand in the order of the struct,
    sizes of rows, and `numbers`. The last operand is the mask, with a step of its columns.
    """
    query, key, value, *_ = layouts
    outer, middle, inner = _three(batch)
    steps: list[int] = []
    for shape, strides, size in layouts[:-1]:
        steps += [*_steps(batch, shape, strides, size), strides[-2] // size]
    if layouts[-1] is None:
        steps += [0] * 5
    else:
        shape, strides, size = layouts[-1]
        missing = 2 - min(len(shape), 2)
        shape, strides = (1,) * missing + shape, (0,) * missing + strides
        rows = [0 if shape[at] == 1 else strides[at] // size for at in (-2, -1)]
        steps += [*_steps(batch, shape, strides, size), *rows]
    whole = [middle, inner, *(() if shared is None else (shared,)), *steps]
    sizes = (query[0][-2], key[0][-2], query[0][-1], value[0][-1])
    call = np.zeros((), [("whole", np.int64, len(whole)), ("small", np.int32, 7), ("real", np.float32, 2), ("", "V4")])
    call["whole"], call["small"], call["real"] = whole, (*sizes, *numbers[0]), numbers[1]
    return outer * middle * inner, call


def _three(batch: Axes) -> Axes:
    assert len(batch) <= 3
    return (1,) * (3 - len(batch)) + batch


def _steps(batch: Axes, shape: Axes, strides: Axes, size: int) -> list[int]:
    """Steps along the three leading axes, 0 where the operand is shared."""
    leading = len(shape) - 2
    own = [0 if shape[at] == 1 else strides[at] // size for at in range(leading)]
    return [0] * (3 - leading) + own


def _is_shared(array: Array, batch: Axes) -> bool:
    return batch[-1] > 1 and (array.ndim < 3 or array.shape[-3] == 1 or array.strides[-3] == 0)


def _with_neighbours(array: Array) -> Array:
    """The array, copied unless elements of a row are neighbours."""
    if array.shape[-1] == 1 or array.strides[-1] == array.itemsize:
        return array
    return backend.require_cupy().ascontiguousarray(array)


def _vectors(layouts: Iterable[tuple[Axes, Axes, int]], in_line: bool) -> bool:
    """Whether all rows begin (the first ones: `in_line`) and end at multiples of 16 bytes."""
    return in_line and all(_in_vectors(*each) for each in layouts)


def _in_vectors(shape: Axes, strides: Axes, size: int) -> bool:
    rows = zip(shape[:-1], strides[:-1], strict=True)
    return shape[-1] * size % 16 == 0 and all(step % 16 == 0 for count, step in rows if count > 1)


def _mask_kind(mask: Array | None) -> int:
    return 0 if mask is None else 1 if mask.dtype == np.bool_ else 2
