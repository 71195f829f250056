"""Parts of a tensor as views: an element or a slice along an axis, pieces, the diagonal, windows."""

import itertools
from collections.abc import Callable, Sequence
from operator import itemgetter
from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.versions import MULTIPLE, restricted
from engine.calls.dispatch import apply, apply_view
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.memory import backend
from engine.ops.views.operator import view_operator
from engine.rules.dims import wrap_dim
from engine.rules.dtypes import INTEGER_CATEGORY
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _at(ndim: int, dim: int, key: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * dim, key)


def _select_rule(input: Spec, dim: int, index: int) -> Spec:
    return input.like(
        shape=(*input.shape[:dim], *input.shape[dim + 1 :]), stride=(*input.stride[:dim], *input.stride[dim + 1 :])
    )


def _select_forward(xp: ModuleType, input: Any, dim: int, index: int) -> Any:
    view = input[(*_at(input.ndim, dim, index), ...)]
    if not view.size:  # NumPy leaves the pointer of an empty view where it was; PyTorch moves it
        spec = backend.spec_of_array(input)
        return backend.strided_view(input, _select_rule(spec, dim, index), index * spec.stride[dim])
    return view


def _indexed(
    xp: ModuleType, plan: Plan, forward: Callable[..., Any], dim: int, key: int | slice
) -> Callable[[Any], Any]:
    """A view by an index along one axis, of arrays of one Spec."""
    if not plan.outs[0].numel:
        return lambda input: forward(xp, input, *plan.attributes)
    return itemgetter((*_at(plan.input_specs[0].ndim, dim, key), ...))


SELECT = view_operator(
    "select",
    _select_rule,
    _select_forward,
    "dim index",
    prepare=lambda xp, plan: _indexed(xp, plan, _select_forward, *plan.attributes),
)


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One element along an axis, which disappears."""
    if not input.ndim:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, input.ndim, "select")
    size = input.shape[dim]
    index = index.__index__()
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(input.shape)} at dimension {dim}"
        )
    return apply_view(SELECT, input, (dim, index + size if index < 0 else index))


def _slice_rule(input: Spec, dim: int, start: int, stop: int, step: int) -> Spec:
    return input.like(
        shape=(*input.shape[:dim], (stop - start + step - 1) // step, *input.shape[dim + 1 :]),
        stride=(*input.stride[:dim], input.stride[dim] * step, *input.stride[dim + 1 :]),
    )


def _slice_forward(xp: ModuleType, input: Any, dim: int, start: int, stop: int, step: int) -> Any:
    view = input[_at(input.ndim, dim, slice(start, stop, step))]
    if not view.size:  # NumPy leaves the pointer of an empty view where it was; PyTorch moves it
        spec = backend.spec_of_array(input)
        return backend.strided_view(input, _slice_rule(spec, dim, start, stop, step), start * spec.stride[dim])
    return view


SLICE = view_operator(
    "slice",
    _slice_rule,
    _slice_forward,
    "dim start stop step",
    prepare=lambda xp, plan: _indexed(xp, plan, _slice_forward, plan.attributes[0], slice(*plan.attributes[1:])),
)


def slice_along(input: Tensor, dim: int, start: int | None = None, stop: int | None = None, step: int = 1) -> Tensor:
    """`input[..., start:stop:step, ...]` along one axis.

    Raises: ValueError for a step that is not positive.
    """
    if step is None:
        step = 1
    if step <= 0:
        raise ValueError(f"step must be greater than zero, got {step}; use .flip({dim}) to reverse")
    size = input.shape[dim]
    low, high, step = slice(start, stop, step).indices(size)
    return apply_view(SLICE, input, (dim, low, max(low, high), step))


@heard
def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements from `start` along an axis."""
    if not input.ndim:
        raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, input.ndim, "narrow")
    size = input.shape[dim]
    if isinstance(start, Tensor) and (start.ndim or start.dtype.category != INTEGER_CATEGORY):
        raise RuntimeError(f"start must be an 0-dim integral Tensor, got shape {list(start.shape)} and {start.dtype}")
    start, length = int(start), int(length)
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if not -size <= start <= size:
        raise IndexError(f"narrow: start out of range (expected to be in range of [{-size}, {size}], but got {start})")
    start = start + size if start < 0 else start
    if start + length > size:
        raise RuntimeError(f"narrow: start ({start}) + length ({length}) exceeds dimension size ({size}).")
    return apply_view(SLICE, input, (dim, start, start + length, 1))


def _pieces_rule(input: Spec, sections: tuple[int, ...], dim: int) -> tuple[Spec, ...]:
    ends = itertools.accumulate(sections)
    return tuple(_slice_rule(input, dim, end - size, end, 1) for size, end in zip(sections, ends, strict=True))


def _pieces(xp: ModuleType, input: Any, sections: tuple[int, ...], dim: int) -> list[Any]:
    ends = itertools.accumulate(sections)
    return [SLICE.forward(xp, input, dim, end - size, end, 1) for size, end in zip(sections, ends, strict=True)]


def _joined(g: tuple[Any, ...], nd: Any, input_spec: Spec, sections: tuple[int, ...], dim: int) -> Any:
    like = next(each for each in g if each is not None)
    shapes = ((*input_spec.shape[:dim], size, *input_spec.shape[dim + 1 :]) for size in sections)
    return nd.cat([_or_zeros(each, nd, like, shape) for each, shape in zip(g, shapes, strict=True)], dim)


def _or_zeros(g: Any, nd: Any, like: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an output that was not used is 0."""
    if g is not None:
        return g
    return nd.zeros_beside(like, shape)


def _unbind_rule(input: Spec, dim: int) -> tuple[Spec, ...]:
    return (_select_rule(input, dim, 0),) * input.shape[dim]


def _stacked(g: tuple[Any, ...], nd: Any, input_spec: Spec, dim: int) -> Any:
    like = next(each for each in g if each is not None)
    shape = (*input_spec.shape[:dim], *input_spec.shape[dim + 1 :])
    return nd.cat([_or_zeros(each, nd, like, shape)[_at(len(shape), dim, None)] for each in g], dim)


SPLIT, SPLIT_WITH_SIZES = (
    define(
        name,
        rule=_pieces_rule,
        forward=_pieces,
        backward=(_joined,),
        attributes="sections dim",
        outputs=0,
        view=True,
    )
    for name in ("split", "split_with_sizes")
)
UNBIND = define(
    "unbind",
    rule=_unbind_rule,
    forward=lambda xp, input, dim: [_select_forward(xp, input, dim, index) for index in range(input.shape[dim])],
    backward=(_stacked,),
    attributes="dim",
    outputs=0,
    view=True,
)


@heard
def split(input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along an axis: of one size (the last may be smaller), or of the given sizes."""
    return tuple(map(_output_of_many, unsafe_split(input, split_size_or_sections, dim)))


@heard
def unsafe_split(input: Tensor, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """`split` whose pieces may be written in place while recording: they stay views with a history."""
    _require_axes("split", input)
    dim = wrap_dim(dim, input.ndim, "split")
    size = input.shape[dim]
    if isinstance(split_size, int):
        step = split_size
        if step < 0 or (step == 0 and size):
            raise RuntimeError(
                f"split expects split_size be non-negative (and positive for a non-empty axis), but got "
                f"split_size={step}"
            )
        sections = [min(step, size - start) for start in range(0, size, step)] if size else [0]
    else:
        sections = list(split_size)
        if sum(sections) != size or any(section < 0 for section in sections):
            raise RuntimeError(
                f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension "
                f"{dim}), but got {sections}"
            )
    operator = SPLIT if isinstance(split_size, int) else SPLIT_WITH_SIZES
    return apply(operator, (input,), (tuple(sections), dim))


def _output_of_many(piece: Tensor) -> Tensor:
    """Marks one of several views made at once: PyTorch refuses in-place writes through those while recording."""
    piece._view_version = restricted(piece._version, MULTIPLE)
    return piece


def _require_axes(name: str, input: Tensor) -> None:
    if not input.ndim:
        raise RuntimeError(
            f"{name} expects at least a 1-dimensional tensor, got a tensor with 0 dims; reshape(1) adds one"
        )


@heard
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size along an axis (the last may be smaller)."""
    return tuple(map(_output_of_many, unsafe_chunk(input, chunks, dim)))


@heard
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`chunk` whose pieces may be written in place while recording."""
    _require_axes("chunk", input)
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = input.shape[wrap_dim(dim, input.ndim, "chunk")]
    each = (size + chunks - 1) // chunks
    return unsafe_split(input, each or [0] * chunks, dim)


@heard
def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces as NumPy's array_split makes them."""
    _require_axes("tensor_split", input)
    size = input.shape[wrap_dim(dim, input.ndim, "tensor_split")]
    if isinstance(indices_or_sections, int):
        n = indices_or_sections
        if n <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {n}")
        bounds = list(itertools.accumulate((size // n + (i < size % n) for i in range(n)), initial=0))
    else:
        bounds = [0, *(slice(i, None).indices(size)[0] for i in indices_or_sections), size]
    return tuple(narrow(input, dim, low, max(high - low, 0)) for low, high in itertools.pairwise(bounds))


@heard
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The elements along an axis, which disappears."""
    dim = wrap_dim(dim, input.ndim, "unbind")
    if not input.ndim:
        raise IndexError("unbind: Dimension specified as 0 but tensor has no dimensions; a 0-dim tensor is one element")
    return tuple(map(_output_of_many, apply(UNBIND, (input,), (dim,))))


def _diagonal_rule(input: Spec, offset: int, dim1: int, dim2: int) -> Spec:
    length = max(
        min(input.shape[dim1], input.shape[dim2] - offset)
        if offset >= 0
        else min(input.shape[dim1] + offset, input.shape[dim2]),
        0,
    )
    kept = [axis for axis in range(input.ndim) if axis not in (dim1, dim2)]
    return input.like(
        shape=[*(input.shape[axis] for axis in kept), length],
        stride=(*(input.stride[axis] for axis in kept), input.stride[dim1] + input.stride[dim2]),
    )


def _diagonal_forward(xp: ModuleType, input: Any, offset: int, dim1: int, dim2: int) -> Any:
    view = input.diagonal(offset, dim1, dim2)
    if (
        not view.size
    ):  # NumPy leaves the pointer of an empty view where it was; PyTorch moves it unless the diagonal itself is empty
        spec = backend.spec_of_array(input)
        moved = offset * spec.stride[dim2] if offset >= 0 else -offset * spec.stride[dim1]
        return backend.strided_view(input, _diagonal_rule(spec, offset, dim1, dim2), moved if view.shape[-1] else 0)
    if xp is np and not view.flags.writeable:
        view.flags.writeable = True  # NumPy hands diagonals out read-only for historical reasons
    return view


DIAGONAL = view_operator("diagonal", _diagonal_rule, _diagonal_forward, "offset dim1 dim2")


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal of two axes as the last axis."""
    a, b = wrap_dim(dim1, input.ndim, "diagonal"), wrap_dim(dim2, input.ndim, "diagonal")
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return apply(DIAGONAL, (input,), (int(offset), a, b))


def _unfold_rule(input: Spec, dimension: int, size: int, step: int) -> Spec:
    have = input.shape[dimension] if input.ndim else 1
    if size > have:
        raise RuntimeError(f"maximum size for tensor at dimension {dimension} is {have} but size is {size}")
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    count = (have - size) // step + 1
    if not input.ndim:
        return input.like(shape=(size,), stride=(1,))
    shape, stride = list(input.shape), list(input.stride)
    inner = stride[dimension]
    shape[dimension], stride[dimension] = count, inner * step
    return input.like(shape=[*shape, size], stride=(*stride, inner))


def _unfold_forward(xp: ModuleType, input: Any, dimension: int, size: int, step: int) -> Any:
    spec = backend.spec_of_array(input)
    return backend.strided_view(input, _unfold_rule(spec, dimension, size, step), 0)


UNFOLD = view_operator("unfold", _unfold_rule, _unfold_forward, "dimension size step", overlapping=True)


def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` every `step` along an axis; the window is the last axis."""
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    return apply(UNFOLD, (input,), (wrap_dim(dimension, input.ndim, "unfold"), int(size), int(step)))


@heard
def narrow_copy(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`narrow` in new memory."""
    return narrow(input, wrap_dim(dim, input.ndim, "narrow_copy"), start, length).clone()
