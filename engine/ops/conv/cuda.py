"""Convolution on the device: what `conv.cu`, `conv_weight.cu` and `depthwise.cu` are compiled for, grids, places in
memory.

Images are (N, C, d...) with one to three spatial axes and weights (O, C / groups, kernel...), of one dtype, in any
strides that are not negative. Sums are in float32 for float32 and the half types. Products of matrices run on tensor
cores for the half types, for float32 with `tf32`, else on the ordinary units; groups of few channels have kernels
without products, which serve float64 as well. The order of every sum depends on shapes and strides alone, so equal
calls give equal bits.
"""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from engine.kernels.cuda.launch import CUDA_TYPES, Prepared, Source, cuda_type, gpu_in_use
from engine.kernels.cuda.limits import TENSOR_CORES, limits
from engine.kernels.cuda.rows import flat_grid, pointer
from engine.memory import backend
from engine.ops.copy.cuda import prepared

Array = Any
Axes = tuple[int, ...]
Layout = tuple[Axes, Axes, int]  # shape, strides in bytes, and the address modulo 16
Moves = tuple[Axes, Axes, Axes, int]  # stride, padding, dilation, groups

_PRODUCTS = {"float32": ("Simt", "Tf32"), "float16": ("Tensor",), "bfloat16": ("Tensor",)}
_FEW = 8  # channels of a group below which both sides are computed without products
_ROWS = 128  # of a block's tile in `conv`; 8 times COLUMN_TILES columns
_WEIGHT_ROWS, _WEIGHT_COLUMNS = 64, 128
_BLOCKS = 256  # that a weight's gradient is split into
_SLABS_AT_LEAST = 8  # of one part
_GRID_AT_MOST = 65535  # along y and z


@lru_cache
def _macros(name: str, product: str, vector: int) -> dict[str, str]:
    return {
        "ELEMENT": CUDA_TYPES[name],
        "PRODUCT": product,
        "ACCESS": str(vector),
        "DEPTH": "32" if vector == 8 else "16",
        "STAGES": "2" if vector == 1 else "3",
    }


@lru_cache
def _forward_macros(name: str, product: str, vector: int, adjoint: bool, columns: int) -> dict[str, str]:
    tile = {"ROW_WARPS": "4", "COLUMN_WARPS": "1", "COLUMN_TILES": str(columns)}
    return {**_macros(name, product, vector), **tile, "ADJOINT": str(int(adjoint))}


@lru_cache
def _weight_macros(name: str, product: str, vector: int) -> dict[str, str]:
    return {**_macros(name, product, vector), "ROW_WARPS": "2", "COLUMN_WARPS": "2", "COLUMN_TILES": "8"}


def _vector(name: str) -> int:
    return 16 // np.dtype(np.float32).itemsize if name == "float32" else 8


_KINDS = [
    (name, product, vector)
    for name, products in _PRODUCTS.items()
    for product in products
    for vector in (1, _vector(name))
]
CONV = Source(
    "ops/conv/conv.cu",
    ["conv"],
    [_forward_macros(*kind, adjoint, columns) for kind in _KINDS for adjoint in (False, True) for columns in (4, 8)],
    headers=["ops/conv/image.cuh", "mma.cuh", "ops/conv/conv.cuh"],
)
WEIGHT = Source(
    "ops/conv/conv_weight.cu",
    ["conv_weight"],
    [_weight_macros(*kind) for kind in _KINDS],
    headers=["ops/conv/image.cuh", "mma.cuh", "ops/conv/conv.cuh"],
)
_TYPES = [{"ELEMENT": kind} for kind in ("float", "double", "float16", "bfloat16")]
DIRECT = Source("ops/conv/depthwise.cu", ["direct", "direct_weight"], _TYPES, headers=["ops/conv/image.cuh"])
PARTS = Source("ops/conv/conv_parts.cu", ["add_parts"], _TYPES, headers=["ops/conv/image.cuh"])


def serves(weight_shape: Axes, dtype: Any, moves: Moves) -> bool:
    """Whether there are kernels for a weight (O, C / groups, kernel...) of this dtype: products of matrices need a
    device of compute capability 8.0 or more.
    """
    return _serves(weight_shape, dtype, tuple(moves), gpu_in_use())


@lru_cache(4096)
def _serves(weight_shape: Axes, dtype: np.dtype, moves: Moves, gpu: int) -> bool:
    stride, _, _, groups = moves
    if dtype.name != "float64" and dtype.name not in _PRODUCTS:
        return False
    taps = prod(weight_shape[1:])
    if _is_direct(weight_shape, groups):
        return max(taps, weight_shape[0]) <= _GRID_AT_MOST
    return dtype.name != "float64" and max(groups, prod(stride)) <= _GRID_AT_MOST and limits()[0] >= TENSOR_CORES


def _is_direct(weight_shape: Axes, groups: int) -> bool:
    return groups > 1 and max(weight_shape[1], weight_shape[0] // groups) < _FEW


def convolve(
    source: Array, weight: Array, bias: Array | None, out: Array, moves: Moves, adjoint: bool, tf32: bool
) -> None:
    """Fills `out`: (N, O, d...) from a source (N, C, d...); with `adjoint`, (N, C, d...) from (N, O, d...)."""
    dtype = source.dtype
    assert dtype == weight.dtype == out.dtype
    if bias is not None and not bias.flags.c_contiguous:
        bias = backend.require_cupy().ascontiguousarray(bias)
    layouts = _layout(source), _layout(weight), _layout(out)
    plan = _convolution(*layouts, dtype, tuple(moves), adjoint, tf32, gpu_in_use())
    if plan.pack is not None:
        packed = backend.device_empty(plan.packed, dtype)
        plan.pack(weight, packed)
        weight = packed
    plan.launch(source, weight, pointer(bias), out)


class _Plan(NamedTuple):
    launch: Prepared
    packed: Axes = ()  # the shape of a copy of the weight that `pack` fills
    pack: Prepared | None = None


@lru_cache(4096)
def _convolution(
    of_source: Layout,
    of_weight: Layout,
    of_out: Layout,
    dtype: np.dtype,
    moves: Moves,
    adjoint: bool,
    tf32: bool,
    gpu: int,
) -> _Plan:
    """How `convolve` is launched: a pure function of layouts, made on arrays that stand in for those on the device."""
    source, weight, out = (_stand_in(each, dtype) for each in (of_source, of_weight, of_out))
    stride, _, _, groups = moves
    channels, outputs = source.shape[1] // groups, out.shape[1] // groups
    points = _points(source.shape[2:], out.shape[2:], weight.shape[2:], *moves[:3])
    images = (*_image(source), *_image(out))
    if _is_direct(weight.shape, groups):
        batch, count = out.shape[0], prod(out.shape[1:])
        numbers = (np.int32(batch), np.uint32(count), *map(np.int32, (groups, channels, outputs)))
        flags = (np.int32(adjoint), np.int32(_lies_channels_last(out)))
        constants = (*numbers, *points, *images, *_weights(weight, groups, adjoint), *flags)
        grid = (-(-count // 256), min(batch, _GRID_AT_MOST))
        return _Plan(DIRECT.prepare("direct", {"ELEMENT": cuda_type(dtype)}, grid, (256,), constants))
    name = dtype.name
    vector = _vector(name) if _has_vectors(source, channels) else 1
    packed, pack = (), None
    if vector > 1:
        turned = _turned(weight, groups, adjoint)
        if not _is_packed(turned):
            packed = turned.shape
            target = _stand_in((packed, _row_major_steps(packed, dtype.itemsize), 0), dtype)
            in_line = not of_weight[2]
            pack = prepared(packed, turned.strides, target.strides, (dtype, dtype), in_line, gpu)
            assert pack is not None
            turned = target
        steps = _packed_steps(turned)
    else:
        steps = _weights(weight, groups, adjoint)
    columns = 4 if outputs <= 32 else 8
    macros = _forward_macros(name, _product(name, tf32), vector, adjoint, columns)
    phases = prod(stride) if adjoint else 1
    pixels = out.shape[0] * prod(
        -(-size // (step if adjoint else 1)) for size, step in zip(out.shape[2:], stride, strict=True)
    )
    numbers = (np.int32(out.shape[0]), np.int32(channels), np.int32(outputs))
    launch = CONV.prepare(
        "conv",
        macros,
        (-(-pixels // _ROWS) * -(-outputs // (8 * columns)), groups, phases),
        (128,),
        (*numbers, *points, *images, *steps, _in_pairs(out, outputs)),
        _conv_bytes(name, vector, columns),
    )
    return _Plan(launch, packed, pack)


def weight_gradient(slope: Array, input: Array, out: Array, moves: Moves, tf32: bool) -> None:
    """Fills `out` (O, C / groups, kernel...) from the gradient (N, O, d...) of a result and the input (N, C, d...)."""
    assert slope.dtype == input.dtype == out.dtype
    groups = moves[3]
    cupy = backend.require_cupy()
    name = slope.dtype.name
    kernel, channels, outputs = out.shape[2:], out.shape[1], out.shape[0] // groups
    pixels = slope.shape[0] * prod(slope.shape[2:])
    width = prod(kernel) * channels
    points = _points(input.shape[2:], slope.shape[2:], kernel, *moves[:3])
    images = (*_image(slope), *_image(input))
    if _is_direct(out.shape, groups):
        last = _lies_channels_last(slope)
        blocks = width * (-(-out.shape[0] // 32) if last else out.shape[0])
        count, each = _split(pixels, 1024, blocks)
        parts = cupy.empty((count, out.size), np.float64 if name == "float64" else np.float32)
        DIRECT.get("direct_weight", ELEMENT=cuda_type(slope.dtype))(
            (count, width, blocks // width),
            (256,),
            (
                slope, input, parts, np.int64(pixels), np.int64(each), *map(np.int32, (groups, channels, outputs)),
                *points, *images, np.int32(last),
            ),
        )  # fmt: skip
    else:
        vectors = _has_vectors(input, channels) and _has_vectors(slope, outputs)
        vector = _vector(name) if vectors else 1
        macros = _weight_macros(name, _product(name, tf32), vector)
        depth = int(macros["DEPTH"])
        tiles = -(-outputs // _WEIGHT_ROWS) * -(-width // _WEIGHT_COLUMNS)
        count, each = _split(-(-pixels // depth), _SLABS_AT_LEAST, tiles * groups)
        parts = cupy.empty((count, out.size), np.float32)
        WEIGHT.get("conv_weight", **macros)(
            (tiles, groups, count),
            (128,),
            (
                slope, input, parts, np.int64(pixels), np.int64(each), np.int32(channels), np.int32(outputs),
                *points, *images,
            ),
            shared_mem=_weight_bytes(name, vector, depth),
        )  # fmt: skip
    numbers = (np.int32(count), np.int64(out.shape[0]), np.int32(channels), *_three(kernel, 1))
    PARTS.get("add_parts", ELEMENT=cuda_type(out.dtype))(*flat_grid(out.size), (parts, out, *numbers, *_image(out)))


@lru_cache(4096)
def wants_channels_last(weight_shape: Axes, dtype: Any, groups: int) -> bool:
    """Whether images whose channels are neighbours are read 16 bytes at a time and often enough to change the layout of
    others first: with windows of several taps.
    """
    if dtype.name not in _PRODUCTS or _is_direct(weight_shape, groups) or prod(weight_shape[2:]) == 1:
        return False
    vector = _vector(dtype.name)
    return weight_shape[1] % vector == 0 and weight_shape[0] // groups % vector == 0


def in_channels_last(image: Array) -> Array:
    """A float32 or half precision image (N, C, d...) with its channels as neighbours: itself, or a copy."""
    found = _to_channels_last(*_layout(image), image.dtype, gpu_in_use())
    if found is None:
        return image
    shape, launch = found
    target = backend.device_empty(shape, image.dtype)
    launch(image, target)
    return target.transpose(0, image.ndim - 1, *range(1, image.ndim - 1))


@lru_cache(4096)
def _to_channels_last(
    shape: Axes, strides: Axes, beside: int, dtype: np.dtype, gpu: int
) -> tuple[Axes, Prepared] | None:
    last = (0, *range(2, len(shape)), 1)
    sizes, steps = (tuple(each[axis] for axis in last) for each in (shape, strides))
    dense = _row_major_steps(sizes, dtype.itemsize)
    if all(size == 1 or step == its for size, step, its in zip(sizes, steps, dense, strict=True)):
        return None
    launch = prepared(sizes, steps, dense, (dtype, dtype), not beside, gpu)
    assert launch is not None
    return sizes, launch


def _row_major_steps(shape: Axes, size: int) -> Axes:
    """Strides in bytes."""
    return tuple(size * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _split(units: int, at_least: int, blocks: int) -> tuple[int, int]:
    """Into how many parts a sum over so many units goes, and the units of each, where one part takes `blocks`."""
    count = max(min(_BLOCKS // blocks, units // at_least), 1)
    each = -(-units // count)
    return -(-units // each), each


def _product(name: str, tf32: bool) -> str:
    return _PRODUCTS[name][-1 if tf32 else 0]


# --- shared memory, as the kernels divide it --------------------------------------------------------------------------


@lru_cache
def _conv_bytes(name: str, vector: int, columns: int) -> int:
    size, depth, stages = (4 if name == "float32" else 2), (32 if vector == 8 else 16), (2 if vector == 1 else 3)
    leading = depth + 16 // size
    rows = depth * (_ROWS + 8) if vector == 1 else _ROWS * leading
    return stages * (rows + 8 * columns * leading) * size + 2 * (depth // vector) * 32


@lru_cache
def _weight_bytes(name: str, vector: int, depth: int) -> int:
    size, stages = (4 if name == "float32" else 2), (2 if vector == 1 else 3)
    if vector > 1:
        slab = depth * (_WEIGHT_ROWS + 8 + _WEIGHT_COLUMNS + 8)
    else:
        slab = (_WEIGHT_ROWS + _WEIGHT_COLUMNS) * (depth + 16 // size)
    return stages * slab * size + 2 * depth * 32 + _WEIGHT_COLUMNS * 24


# --- arrays that stand in for those on the device: they lie alike, and nobody reads them ------------------------------


def _layout(array: Array) -> Layout:
    return (array.shape, array.strides, array.data.ptr & 15)


def _stand_in(layout: Layout, dtype: np.dtype) -> Array:
    shape, strides, beside = layout
    room = np.empty(48, np.uint8)
    begin = (beside - backend.address(room)) % 16
    return np.lib.stride_tricks.as_strided(room[begin : begin + dtype.itemsize].view(dtype), shape, strides)


# --- places in memory -------------------------------------------------------------------------------------------------


@lru_cache(4096)
def _points(*axes: Axes) -> tuple[np.int32, ...]:
    """Sizes of the source, of the result and of the window, stride, padding and dilation, for three axes each."""
    return tuple(number for each, fill in zip(axes, (1, 1, 1, 1, 0, 1), strict=True) for number in _three(each, fill))


def _three(axes: Axes, fill: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, (fill,) * (3 - len(axes)) + axes))


def _image(array: Array) -> tuple[np.int64, ...]:
    """Steps of samples, of channels and along three axes."""
    return _steps(array.shape, array.strides, array.itemsize)


@lru_cache(4096)
def _steps(shape: Axes, strides: Axes, size: int) -> tuple[np.int64, ...]:
    steps = [step // size for step in strides]
    return tuple(map(np.int64, (*steps[:2], *(0,) * (5 - len(shape)), *steps[2:])))


def _weights(weight: Array, groups: int, adjoint: bool) -> tuple[np.int64, ...]:
    """Steps of the result's channels, of the source's, of taps, and of groups."""
    outer, inner, *taps = _image(weight)
    group = np.int64(weight.shape[0] // groups * int(outer))
    return (inner, outer, *taps, group) if adjoint else (outer, inner, *taps, group)


def _turned(weight: Array, groups: int, adjoint: bool) -> Array:
    """(groups, result's channels, kernel..., source's channels), a view."""
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    taps = range(3, split.ndim)
    return split.transpose((0, 2, *taps, 1) if adjoint else (0, 1, *taps, 2))


def _is_packed(turned: Array) -> bool:
    """Whether the kernels read it as it is: a channels-last weight, for convolution."""
    steps = all(step % 16 == 0 for step in turned.strides[:-1])
    return steps and turned.strides[-1] == turned.itemsize and backend.address(turned) % 16 == 0


def _packed_steps(packed: Array) -> tuple[np.int64, ...]:
    group, outer, *taps, inner = (step // packed.itemsize for step in packed.strides)
    return tuple(map(np.int64, (outer, inner, *(0,) * (3 - len(taps)), *taps, group)))


def _has_vectors(image: Array, channels: int) -> bool:
    """Whether the channels of a group are neighbours, in whole units of 16 bytes everywhere."""
    size = image.itemsize
    if image.strides[1] != size or channels * size % 16 or backend.address(image) % 16:
        return False
    return _multiples(image.shape, image.strides, 16)


def _in_pairs(out: Array, outputs: int) -> np.int32:
    """Whether two channels of the result may be written at once."""
    pair = 2 * out.itemsize
    if out.strides[1] != out.itemsize or outputs % 2 or backend.address(out) % pair:
        return np.int32(0)
    return np.int32(_multiples(out.shape, out.strides, pair))


@lru_cache(4096)
def _multiples(shape: Axes, strides: Axes, unit: int) -> bool:
    """Whether the steps of all axes but the channels' are multiples of so many bytes."""
    return all(step % unit == 0 for axis, step in enumerate(strides) if axis != 1 and shape[axis] > 1)


def _lies_channels_last(image: Array) -> bool:
    return image.shape[1] > 1 and image.strides[1] == image.itemsize
