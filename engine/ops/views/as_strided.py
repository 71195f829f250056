"""`as_strided`: a view with any shape, strides and offset, and its derivative. `engine.ops.views.history` builds on it.

Source of the derivative: PyTorch's torch/csrc/autograd/FunctionsManual.cpp, as_strided_backward.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.index.scattering import combine_at
from engine.rules import layout
from engine.rules.dims import shape_from
from engine.tensor import Tensor

Ints = tuple[int, ...]


def strided(array: Any, size: Ints, stride: Ints, offset: int) -> Any:
    """A view on the storage of a raw array, `offset` elements after its first one."""
    return backend.strided_view(array, backend.spec_of_array(array).like(shape=size, stride=stride), offset)


AS_STRIDED = define(
    "as_strided",
    rule=lambda input, size, stride, offset: input.like(shape=size, stride=stride),
    forward=lambda xp, input, size, stride, offset: strided(input, size, stride, offset),
    backward=(
        lambda g, nd, input_spec, size, stride, offset: nd.as_strided_backward(
            g, tuple(input_spec.shape), input_spec.stride, size, stride, offset
        ),
    ),
    attributes="size stride offset",
    view=True,
)


def _extent(shape: Ints, input_stride: Ints, size: Ints, stride: Ints, offset: int) -> tuple[int, int]:
    """(first, length): the stretch of storage that holds both geometries, in elements from the input's first one."""
    first = min(0, offset)
    end = layout.storage_size(shape, input_stride)
    if 0 not in size:
        end = max(end, layout.storage_size(size, stride) + offset)
    return first, max(end - first, 1)


def scatter_strided(
    xp: ModuleType, g: Any, shape: Ints, input_stride: Ints, size: Ints, stride: Ints, offset: int
) -> Any:
    """The adjoint of the view: adds `g` into a model of the storage and reads the input's elements from it."""
    first, length = _extent(shape, input_stride, size, stride, offset)
    memory = xp.zeros(length, g.dtype)
    if layout.internal_overlap(size, stride) == "no":
        strided(memory, size, stride, offset - first)[...] = g
    else:
        places = strided(xp.arange(length), size, stride, offset - first)
        combine_at(xp, "add", memory, (places,), g)
    if (
        layout.internal_overlap(shape, input_stride) != "no"
    ):  # elements of the input that share memory share its gradient
        count = xp.zeros(length, g.dtype)
        combine_at(xp, "add", count, (strided(xp.arange(length), shape, input_stride, -first),), xp.ones((), g.dtype))
        memory = memory / xp.maximum(count, 1)
    return strided(memory, shape, input_stride, -first)


def gather_strided(
    xp: ModuleType, g: Any, shape: Ints, input_stride: Ints, size: Ints, stride: Ints, offset: int
) -> Any:
    """The view of raw values `g` of the input's shape, as if they lay in memory with the input's strides (elsewhere
    zeros).
    """
    first, length = _extent(shape, input_stride, size, stride, offset)
    memory = xp.zeros(length, g.dtype)
    strided(memory, shape, input_stride, -first)[...] = g
    return strided(memory, size, stride, offset - first)


_GEOMETRY = "shape input_stride size stride offset"

# The two are each other's adjoint, so derivatives of any order stay among them.
AS_STRIDED_BACKWARD = define(
    "as_strided_backward",
    rule=lambda input, shape, input_stride, size, stride, offset: input.like(shape=shape),
    forward=scatter_strided,
    backward=(
        lambda g, nd, shape, input_stride, size, stride, offset: nd.as_strided_gather(
            g, shape, input_stride, size, stride, offset
        ),
    ),
    attributes=_GEOMETRY,
)
AS_STRIDED_GATHER = define(
    "as_strided_gather",
    rule=lambda input, shape, input_stride, size, stride, offset: input.like(shape=size),
    forward=gather_strided,
    backward=(
        lambda g, nd, shape, input_stride, size, stride, offset: nd.as_strided_backward(
            g, shape, input_stride, size, stride, offset
        ),
    ),
    attributes=_GEOMETRY,
)


def as_strided_backward(
    input: Tensor, shape: Ints, input_stride: Ints, size: Ints, stride: Ints, offset: int
) -> Tensor:
    """The adjoint of `as_strided` on a tensor of `shape` and `input_stride`; `offset` counts from its first element."""
    return apply(AS_STRIDED_BACKWARD, (input,), (shape, input_stride, size, stride, offset))


def as_strided_gather(input: Tensor, shape: Ints, input_stride: Ints, size: Ints, stride: Ints, offset: int) -> Tensor:
    """`as_strided` of a copy of `input` (of `shape`) that lies in memory with `input_stride`."""
    return apply(AS_STRIDED_GATHER, (input,), (shape, input_stride, size, stride, offset))


def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """Any shape, strides (elements) and offset (elements, from the start of the storage) on the memory of `input`.

    Raises: RuntimeError when the view would leave the storage, and for negative strides.
    """
    size, stride = shape_from((tuple(size),), "as_strided"), tuple(int(step) for step in stride)
    if len(size) != len(stride):
        raise RuntimeError(f"as_strided: mismatch in length of strides and shape: {list(size)} and {list(stride)}")
    if any(step < 0 for step in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    here = input.storage_offset() if input._array is not None else 0
    offset = here if storage_offset is None else int(storage_offset)
    if offset < 0:
        raise RuntimeError(f"as_strided: Tensor: invalid storage offset {offset}")
    if input._array is not None:
        _check_inside(input, size, stride, offset)
    return apply(AS_STRIDED, (input,), (size, stride, offset - here))


def _check_inside(input: Tensor, size: Ints, stride: Ints, offset: int) -> None:
    available = input.untyped_storage().nbytes() // input.itemsize
    needed = layout.storage_size(size, stride)
    if needed and needed + offset > available:
        raise RuntimeError(
            f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset}, and itemsize "
            f"{input.itemsize} requiring a storage size of {(needed + offset) * input.itemsize} bytes are out of "
            f"bounds "
            f"for storage of size {available * input.itemsize}"
        )
