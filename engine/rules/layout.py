"""Layout rules: memory formats, contiguity, density, the gradient layout contract, view strides, broadcasting, overlap.

Pure functions of integers. A layout is a `shape` and a `stride`, tuples of the same length, strides in elements and
never negative. Sizes are Python's unbounded integers, so layouts too large to allocate are answered as well. What a
training step asks again and again is memoised: a repeated layout costs one dictionary look-up.

Each rule names the PyTorch source it reproduces; where those disagree with the documentation, the source won.
"""

import enum
from functools import lru_cache
from math import prod
from typing import Final, Literal, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Stride: TypeAlias = tuple[int, ...]

_MEMORY = 8192
"""Layouts remembered per rule; a training step has a few hundred, a test session a few thousand."""


class MemoryFormat(enum.Enum):
    """An order of dimensions in memory, or the wish to keep the one that is there."""

    contiguous_format = "contiguous_format"
    channels_last = "channels_last"
    channels_last_3d = "channels_last_3d"
    preserve_format = "preserve_format"

    # Enum hashes its name in Python: by identity a memoised rule answers in 78 ns instead of 140.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"engine.{self.name}"

    __str__ = __repr__


contiguous_format: Final = MemoryFormat.contiguous_format
channels_last: Final = MemoryFormat.channels_last
channels_last_3d: Final = MemoryFormat.channels_last_3d
preserve_format: Final = MemoryFormat.preserve_format

# Dimensions from the fastest in memory to the slowest.
_CHANNELS_LAST_ORDER = (1, 3, 2, 0)
_CHANNELS_LAST_3D_ORDER = (1, 4, 3, 2, 0)


# Strides of a memory format ------------------------------------------------------------------------------------------


@lru_cache(_MEMORY)
def contiguous_strides(shape: Shape) -> Stride:
    """Row-major strides; a size of 0 counts as 1 (c10::TensorImpl::empty_tensor_restride)."""
    stride = []
    expected = 1
    for size in reversed(shape):
        stride.append(expected)
        expected *= size or 1
    return tuple(reversed(stride))


def strides_in_order(shape: Shape, order: tuple[int, ...]) -> Stride:
    """Strides without gaps, `order` listing the dimensions from the fastest in memory to the slowest.

    Unlike row-major strides, and as in PyTorch, those after a size of 0 are 0.
    """
    stride = [0] * len(shape)
    expected = 1
    for dimension in order:
        stride[dimension] = expected
        expected *= shape[dimension]
    return tuple(stride)


def channels_last_strides(shape: Shape) -> Stride:
    """Strides of a channels-last tensor of 4-D `shape` (c10::get_channels_last_strides_2d). RuntimeError if not 4-D."""
    return strides_for_format(shape, channels_last)


@lru_cache(_MEMORY)
def strides_for_format(shape: Shape, memory_format: MemoryFormat) -> Stride:
    """Strides of a new tensor of `shape` in `memory_format` (c10::TensorImpl::empty_tensor_restride).

    Raises RuntimeError if the format needs another rank, or is preserve_format, which says nothing without a tensor.
    """
    if memory_format is contiguous_format:
        return contiguous_strides(shape)
    if memory_format is channels_last or memory_format is channels_last_3d:
        order = _CHANNELS_LAST_ORDER if memory_format is channels_last else _CHANNELS_LAST_3D_ORDER
        if len(shape) != len(order):
            raise RuntimeError(
                f"required rank {len(order)} tensor to use {memory_format.name} format, got shape {list(shape)}"
            )
        return strides_in_order(shape, order)
    if memory_format is preserve_format:
        raise RuntimeError(
            "preserve_format has no strides of its own: expected contiguous_format, channels_last or channels_last_3d"
        )
    raise TypeError(f"memory_format must be an engine.memory_format, got {memory_format!r}")


# What a layout is ----------------------------------------------------------------------------------------------------


@lru_cache(_MEMORY)
def is_contiguous(shape: Shape, stride: Stride, memory_format: MemoryFormat = contiguous_format) -> bool:
    """Whether the elements lie without gaps in the order of `memory_format` (c10/core/Contiguity.h).

    Strides of dimensions of size 1 do not matter, so [N, 1, H, W] and [N, C, 1, 1] can be contiguous and channels-last
    at once. False for a channels-last format of another rank. Raises RuntimeError for preserve_format.
    """
    if memory_format is contiguous_format:
        return 0 in shape or _lies_in_order(shape, stride, range(len(shape) - 1, -1, -1))
    if memory_format is channels_last:
        return len(shape) == 4 and _lies_in_order(shape, stride, _CHANNELS_LAST_ORDER)
    if memory_format is channels_last_3d:
        return len(shape) == 5 and _lies_in_order(shape, stride, _CHANNELS_LAST_3D_ORDER)
    if memory_format is preserve_format:
        raise RuntimeError("preserve memory format is unsupported by is_contiguous(): name a format to compare with")
    raise TypeError(f"memory_format must be an engine.memory_format, got {memory_format!r}")


def _lies_in_order(shape: Shape, stride: Stride, order: tuple[int, ...] | range) -> bool:
    expected = 1
    for dimension in order:
        size = shape[dimension]
        if size != 1:
            if stride[dimension] != expected:
                return False
            expected *= size
    return True


@lru_cache(_MEMORY)
def is_non_overlapping_and_dense(shape: Shape, stride: Stride) -> bool:
    """Whether the elements fill their memory without gaps or sharing, in any order of dimensions.

    c10::TensorImpl::compute_is_non_overlapping_and_dense. Dimensions of size 1 do not matter; without elements true.
    """
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size > 1):
        if step != expected:
            return False
        expected *= size
    return True


@lru_cache(_MEMORY)
def strides_like_channels_last(shape: Shape, stride: Stride) -> bool:
    """Whether a 4-D layout, dense or not, is ordered like channels-last (c10::is_channels_last_strides_2d).

    Ambiguous layouts, those of [N, 1, 1, 1] for one, and layouts without elements are not.
    """
    return len(shape) == 4 and _ordered_like(shape, stride, _CHANNELS_LAST_ORDER)


@lru_cache(_MEMORY)
def strides_like_channels_last_3d(shape: Shape, stride: Stride) -> bool:
    """The 5-D twin of `strides_like_channels_last` (c10::is_channels_last_strides_3d)."""
    return len(shape) == 5 and _ordered_like(shape, stride, _CHANNELS_LAST_3D_ORDER)


def _ordered_like(shape: Shape, stride: Stride, order: tuple[int, ...]) -> bool:
    if stride[1] == 0:
        return False
    least = 0
    for dimension in order:
        if shape[dimension] == 0 or stride[dimension] < least:
            return False
        # The batch would begin where the channels do: nothing but dimensions of size 1 in between, so undecidable.
        if dimension == 0 and least == stride[1]:
            return False
        least = stride[dimension] * max(shape[dimension], 1)
    return True


@lru_cache(_MEMORY)
def suggest_memory_format(shape: Shape, stride: Stride, exact_match: bool = False) -> MemoryFormat:
    """The memory format an operator should give its result (at::TensorBase::suggest_memory_format).

    `exact_match` also wants the strides of dimensions of size 0 and 1, and density, to be those of the format.
    `tensor.to(memory_format=f)` copies exactly if this, not exact, answers something other than `f`.
    """
    for memory_format, looks_like in (
        (channels_last, strides_like_channels_last),
        (channels_last_3d, strides_like_channels_last_3d),
    ):
        if looks_like(shape, stride) and (not exact_match or strides_for_format(shape, memory_format) == stride):
            return memory_format
    return contiguous_format


def same_layout_modulo_size_one(shape: Shape, a: Stride, b: Stride) -> bool:
    """Whether two strides place the elements of `shape` alike; dimensions of size 1 never move, nor does emptiness."""
    return a == b or 0 in shape or all(x == y for size, x, y in zip(shape, a, b, strict=True) if size != 1)


def storage_size(shape: Shape, stride: Stride) -> int:
    """Elements from the first to the last in memory, both included; 0 without elements (computeStorageNbytes)."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


# The order of dimensions and layouts that keep it --------------------------------------------------------------------


def permutation(shape: Shape, strides: tuple[Stride, ...]) -> tuple[int, ...]:
    """Dimensions of `shape` from the fastest in memory to the slowest, the first decided operand's opinion counting.

    at::TensorIteratorBase::reorder_dimensions. `strides` holds every operand's strides along `shape`, 0 where it is
    broadcast. An insertion sort, because comparing is not transitive: a stride of 0 leaves two dimensions undecided,
    and so do equal strides unless the earlier dimension is longer. Undecided pairs ask the next operand, and in the
    end stay in row-major order.
    """
    order = list(range(len(shape) - 1, -1, -1))
    for placed in range(1, len(order)):
        at = placed
        for before in range(placed - 1, -1, -1):
            comparison = _compare(shape, strides, order[before], order[at])
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif comparison < 0:
                break
    return tuple(order)


def _compare(shape: Shape, strides: tuple[Stride, ...], first: int, second: int) -> int:
    """1 if dimension `first` has to come after `second`, -1 if before, 0 if nobody can tell."""
    for stride in strides:
        a, b = stride[first], stride[second]
        if a and b:
            if a != b:
                return 1 if a > b else -1
            if shape[first] > shape[second]:
                return 1
    return 0


@lru_cache(_MEMORY)
def preserve_strides(shape: Shape, stride: Stride) -> Stride:
    """Strides of a new tensor that keeps the layout: `clone`, `empty_like` and `to(dtype)` with preserve_format.

    The same strides if non-overlapping and dense, otherwise dense ones in the same order of dimensions, the order
    decided as TensorIterator does (at::infer_dense_strides).
    """
    if is_non_overlapping_and_dense(shape, stride):
        return stride
    return strides_in_order(shape, permutation(shape, (stride,)))


# The gradient layout contract ----------------------------------------------------------------------------------------


@lru_cache(_MEMORY)
def obeys_layout_contract(shape: Shape, grad_stride: Stride, variable_stride: Stride) -> bool:
    """Whether a gradient may become `.grad` as it lies (torch/csrc/autograd/utils/grad_layout_contract.h).

    For a non-overlapping and dense variable: the variable's strides, except that a dimension of size 1 may have any but
    0. For any other variable: row-major contiguous.
    """
    if not is_non_overlapping_and_dense(shape, variable_stride):
        return is_contiguous(shape, grad_stride)
    return all(
        step != 0 if size == 1 else step == wanted
        for size, step, wanted in zip(shape, grad_stride, variable_stride, strict=True)
    )


@lru_cache(_MEMORY)
def contract_strides(shape: Shape, variable_stride: Stride) -> Stride:
    """Strides of a copy that obeys the contract: the variable's if it is non-overlapping and dense, else row-major."""
    return variable_stride if is_non_overlapping_and_dense(shape, variable_stride) else contiguous_strides(shape)


# Views and broadcasting ----------------------------------------------------------------------------------------------


@lru_cache(_MEMORY)
def view_strides(shape: Shape, stride: Stride, new_shape: Shape) -> Stride | None:
    """Strides with which `new_shape` shows the same elements in row-major order; None if only a copy can.

    at::detail::computeStride. `new_shape` has as many elements as `shape` and no -1 (see `infer_size`). Without
    elements any shape can be viewed: the strides are kept if the shape is, and row-major otherwise.
    """
    if not shape:
        return (1,) * len(new_shape)
    if 0 in shape:
        return stride if shape == new_shape else contiguous_strides(new_shape)
    result = [0] * len(new_shape)
    at = len(new_shape) - 1
    base = stride[-1]
    old_count = new_count = 1
    # Walk from the last dimension over chunks of dimensions that lie like one, and cut each into new dimensions.
    for dimension in range(len(shape) - 1, -1, -1):
        old_count *= shape[dimension]
        if dimension > 0 and (shape[dimension - 1] == 1 or stride[dimension - 1] == old_count * base):
            continue
        while at >= 0 and (new_count < old_count or new_shape[at] == 1):
            result[at] = new_count * base
            new_count *= new_shape[at]
            at -= 1
        if new_count != old_count:
            return None
        if dimension > 0:
            base = stride[dimension - 1]
            old_count = new_count = 1
    return tuple(result) if at == -1 else None


@lru_cache(_MEMORY)
def infer_size(new_shape: Shape, numel: int) -> Shape:
    """`new_shape` with its -1, if any, replaced so that it has `numel` elements (at::infer_size).

    Raises RuntimeError for two -1, another negative size, a count that does not fit, or a -1 beside a size of 0.
    """
    free = [axis for axis, size in enumerate(new_shape) if size == -1]
    if len(free) > 1:
        raise RuntimeError(f"only one dimension can be inferred: got shape {list(new_shape)}")
    for axis, size in enumerate(new_shape):
        if size < -1:
            raise RuntimeError(f"invalid shape dimension {size} at index {axis} of shape {list(new_shape)}")
    known = prod(size for size in new_shape if size != -1)
    if not free:
        if known == numel:
            return new_shape
    elif known == 0 and numel == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {list(new_shape)} because the unspecified dimension "
            "size -1 can be any value and is ambiguous: give every size"
        )
    elif known > 0 and numel % known == 0:
        return (*new_shape[: free[0]], numel // known, *new_shape[free[0] + 1 :])
    raise RuntimeError(
        f"shape '{list(new_shape)}' is invalid for input of size {numel}: the sizes must multiply to {numel}"
    )


@lru_cache(_MEMORY)
def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape all of `shapes` expand to: aligned at the last axis, sizes are equal or 1 (at::infer_size).

    Raises RuntimeError naming the two shapes, the sizes and the axis (of the result) that do not fit.
    """
    result: Shape = ()
    for shape in shapes:
        if shape != result:
            result = _broadcast_two(result, shape)
    return result


def _broadcast_two(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    sizes = []
    for axis, (x, y) in enumerate(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)):
        if x != y and x != 1 and y != 1:
            raise RuntimeError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton dimension {axis}: "
                f"shapes {list(a)} and {list(b)} do not broadcast together"
            )
        sizes.append(y if x == 1 else x)
    return tuple(sizes)


# Memory overlap ------------------------------------------------------------------------------------------------------


@lru_cache(_MEMORY)
def internal_overlap(shape: Shape, stride: Stride) -> Literal["no", "yes", "too hard"]:
    """Whether two elements of one layout share memory (at::has_internal_overlap).

    "yes" is only said of dimensions expanded with stride 0, "no" only of dense layouts; a write is refused on "yes".
    """
    if is_non_overlapping_and_dense(shape, stride):
        return "no"
    if any(step == 0 and size > 1 for size, step in zip(shape, stride, strict=True)):
        return "yes"
    return "too hard"


def overlap_status(
    address: int,
    shape: Shape,
    stride: Stride,
    itemsize: int,
    other_address: int,
    other_shape: Shape,
    other_stride: Stride,
    other_itemsize: int,
) -> Literal["no", "full", "partial", "too hard"]:
    """How the memory of two tensors overlaps (at::get_overlap_status); a write is refused on "partial".

    Addresses in bytes, of the first element. "full" means the same bytes with the same strides, "too hard" that one of
    them is not dense. The very same tensor overlaps fully whatever its layout: ask `is` first.
    """
    if 0 in shape or 0 in other_shape:
        return "no"
    if not (is_non_overlapping_and_dense(shape, stride) and is_non_overlapping_and_dense(other_shape, other_stride)):
        return "too hard"
    end = address + prod(shape) * itemsize
    other_end = other_address + prod(other_shape) * other_itemsize
    if address == other_address and end == other_end:
        return "full" if stride == other_stride else "partial"
    return "partial" if address < other_end and other_address < end else "no"
