"""TensorIterator's plan: the shape and strides of what elementwise operators, copies and reductions give.

The planning half of PyTorch's aten/src/ATen/TensorIterator.cpp, as pure functions of layouts; dtypes are
`engine.rules.promotion`'s business. An operand is a `(shape, stride)` pair. `operands` lists the outputs that exist and
keep their size first, then the inputs, in the order of the operator's arguments: earlier operands have priority.

Three details decide results and are easily missed. A Python number or 0-dim tensor beside others is an operand of
shape `()` and ends the fast set-ups. An operand that has to be converted to the common dtype is, on the CPU, copied
first: it takes part with `preserve_strides(shape, stride)`, not with the strides it has. And an output that is going to
be resized has no say. Dimensions that lie as one are merged by the loops themselves: NumPy's iterator does so.
"""

from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

from engine.rules.layout import (
    Shape,
    Stride,
    broadcast_shapes,
    channels_last,
    channels_last_strides,
    contiguous_strides,
    is_contiguous,
    is_non_overlapping_and_dense,
    permutation,
    strides_in_order,
)

__all__ = [
    "Kind",
    "Operand",
    "Plan",
    "aligned_strides",
    "fast_setup",
    "permutation",
    "plan",
    "reduction_shape",
]

Operand: TypeAlias = tuple[Shape, Stride]
Kind: TypeAlias = Literal["contiguous", "channels_last", "same_dense", "general"]

_MEMORY: Final = 8192
"""Plans remembered; see `engine.rules.layout`."""


class Plan(NamedTuple):
    """What comes out of an operator: `shape` and `stride` of a new output, and which set-up (`kind`) found them.

    Of every kind but "general", all operands lie alike: one flat pass over their memory visits matching elements.
    """

    shape: Shape
    stride: Stride
    kind: Kind


@lru_cache(_MEMORY)
def plan(operands: tuple[Operand, ...]) -> Plan:
    """The plan for `operands`, at least one. Raises RuntimeError where their shapes do not broadcast."""
    kind = fast_setup(operands)
    first_shape, first_stride = operands[0]
    if kind == "contiguous":
        return Plan(first_shape, contiguous_strides(first_shape), kind)
    if kind == "channels_last":
        return Plan(first_shape, channels_last_strides(first_shape), kind)
    if kind == "same_dense":
        return Plan(first_shape, first_stride, kind)
    shape = broadcast_shapes(*(operand_shape for operand_shape, _ in operands))
    order = permutation(shape, tuple(aligned_strides(shape, *operand) for operand in operands))
    if order == tuple(range(len(shape) - 1, -1, -1)):
        return Plan(shape, contiguous_strides(shape), kind)
    return Plan(shape, strides_in_order(shape, order), kind)


def fast_setup(operands: tuple[Operand, ...]) -> Kind:
    """Which set-up serves `operands` (TensorIteratorBase::compute_fast_setup_type); "general" if no fast one does.

    All of one shape, and all contiguous; or all channels-last (4-D only; the 3-D format has no set-up of its own); or
    all non-overlapping and dense with identical strides, those of dimensions of size 1 included.
    """
    first_shape, first_stride = operands[0]
    if any(shape != first_shape for shape, _ in operands):
        return "general"
    strides = {stride for _, stride in operands}
    if all(is_contiguous(first_shape, stride) for stride in strides):
        return "contiguous"
    if all(is_contiguous(first_shape, stride, channels_last) for stride in strides):
        return "channels_last"
    if len(strides) == 1 and is_non_overlapping_and_dense(first_shape, first_stride):
        return "same_dense"
    return "general"


def aligned_strides(shape: Shape, operand_shape: Shape, operand_stride: Stride) -> Stride:
    """An operand's strides along the broadcast `shape`: 0 where it is missing or repeated (compute_strides)."""
    missing = len(shape) - len(operand_shape)
    return (0,) * missing + tuple(
        0 if size == 1 and wanted != 1 else step
        for size, step, wanted in zip(operand_shape, operand_stride, shape[missing:], strict=True)
    )


def reduction_shape(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    """`shape` with `dims` (not negative) removed, or of size 1 with `keepdim`."""
    if keepdim:
        return tuple(1 if dimension in dims else size for dimension, size in enumerate(shape))
    return tuple(size for dimension, size in enumerate(shape) if dimension not in dims)
