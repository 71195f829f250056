"""Indexing: `x[...]`, read and written, with integers, slices, `...`, None, bools and index tensors. Along one axis:
`engine.ops.index.along_axis`.
"""

import warnings
from types import EllipsisType, ModuleType
from typing import Any

import numpy as np

from engine.autograd.writes import mark_written
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.creation.from_data import tensor as make_tensor
from engine.ops.index.scattering import combine_at
from engine.ops.shared.scalars import assigned
from engine.ops.views.history import adopt_history
from engine.ops.views.operator import unsqueeze
from engine.ops.views.parts import select, slice_along
from engine.ops.writing.inplace import check_writable, copy_
from engine.rules import iterator, layout
from engine.rules.dtypes import bool_, int64, uint8
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor

Key = Any


def getitem(self: Tensor, key: Key) -> Tensor:
    """`self[key]`: a view for integers, slices, None and `...`; a copy as soon as index tensors, lists or masks take
    part.
    """
    if type(key) is not tuple:
        if type(key) is int:
            try:
                return select(self, 0, key)
            except IndexError:
                if not self.ndim:
                    raise IndexError("invalid index of a 0-dim tensor. Use `tensor.item()` for its number") from None
                raise IndexError(
                    f"index {key} is out of bounds for dimension 0 with size {self.shape[0]} (shape {list(self.shape)})"
                ) from None
        key = _as_tuple(key)
    view, indices = _basic_part(self, key)
    if not any(index is not None for index in indices):
        return view if view is not self else self.view(self.shape)
    return _index(view, indices)


def _as_tuple(key: Any) -> tuple[Any, ...]:
    """A key that is no tuple as one. A short list with more than numbers in it is one, with a warning.

    Source: treatSequenceAsTuple in PyTorch's torch/csrc/autograd/python_variable_indexing.cpp.
    """
    if not isinstance(key, list) or len(key) >= 32:
        return (key,)
    if not any(entry is None or entry is Ellipsis or isinstance(entry, _SEQUENCES) for entry in key):
        return (key,)
    warnings.warn(
        "Using a non-tuple sequence for multidimensional indexing is deprecated: x[seq] is x[tuple(seq)] here, as in "
        "PyTorch, which is about to make x[tensor(seq)] of it; write whichever is meant",
        UserWarning,
        stacklevel=3,
    )
    return tuple(key)


_SEQUENCES = (Tensor, np.ndarray, list, tuple, range, slice, str)


def _basic_part(self: Tensor, key: tuple[Any, ...]) -> tuple[Tensor, list[Any]]:
    """Applies everything that is a view; returns it with one entry an axis: an index tensor or None."""
    key = tuple(_as_index(entry) for entry in key)
    consumed = sum(
        0
        if entry is None or entry is Ellipsis or isinstance(entry, bool)
        else entry.ndim
        if isinstance(entry, Tensor) and entry.dtype in (bool_, uint8)
        else 1
        for entry in key
    )
    if sum(entry is Ellipsis for entry in key) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if consumed > self.ndim:
        raise IndexError(f"too many indices for tensor of dimension {self.ndim}: got {consumed}")
    view, dim = self, 0
    indices: list[Any] = []
    for entry in key:
        if entry is Ellipsis:
            skipped = self.ndim - consumed
            indices += [None] * skipped
            dim += skipped
        elif entry is None:
            view = unsqueeze(view, dim)
            indices.append(None)
            dim += 1
        elif isinstance(entry, bool) or (isinstance(entry, Tensor) and not entry.ndim):  # a 0-dim mask
            view = unsqueeze(view, dim)
            indices.append(make_tensor([0] if entry else [], dtype=int64))
            dim += 1
        elif isinstance(entry, int):
            view = _select_checked(view, dim, entry)
        elif isinstance(entry, slice):
            view = _slice(view, dim, entry)
            indices.append(None)
            dim += 1
        else:
            found = _index_tensors(view, dim, entry)
            indices += found
            dim += len(found)
    return view, indices


def _as_index(entry: Any) -> Any:
    if entry is None or entry is Ellipsis or isinstance(entry, bool | slice | EllipsisType):
        return entry
    if isinstance(entry, int):
        return entry
    if isinstance(entry, Tensor):
        if entry.dtype.category > 1:
            raise IndexError(f"tensors used as indices must be long, int, byte or bool tensors, got {entry.dtype}")
        if not entry.ndim and entry.dtype is not bool_:
            return int(entry.item())
        return entry
    if isinstance(entry, np.integer):
        return int(entry)
    if isinstance(entry, list | tuple | range | np.ndarray):
        made = make_tensor(list(entry) if isinstance(entry, range) else entry, dtype=int64 if len(entry) == 0 else None)
        if made.dtype.category > 1:
            raise IndexError(f"tensors used as indices must be long, int, byte or bool tensors, got {made.dtype}")
        return made
    if hasattr(entry, "__index__"):
        return entry.__index__()
    error = IndexError if isinstance(entry, float) else TypeError
    raise error(
        f"only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got "
        f"{type(entry).__name__})"
    )


def _select_checked(view: Tensor, dim: int, index: int) -> Tensor:
    if not view.ndim:
        raise IndexError("invalid index of a 0-dim tensor. Use `tensor.item()` in Python to convert it to a number")
    size = view.shape[dim]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    return select(view, dim, index)


def _slice(view: Tensor, dim: int, key: slice) -> Tensor:
    if key.start is None and key.stop is None and key.step is None:
        return view
    bounds = [None if bound is None else bound.__index__() for bound in (key.start, key.stop, key.step)]
    return slice_along(view, dim, bounds[0], bounds[1], 1 if bounds[2] is None else bounds[2])


def _index_tensors(view: Tensor, dim: int, entry: Tensor) -> list[Tensor]:
    if entry.dtype not in (bool_, uint8):
        return [entry]
    where = tuple(view.shape[dim : dim + entry.ndim])
    if tuple(entry.shape) != where:
        raise IndexError(
            f"The shape of the mask {list(entry.shape)} at index {dim} does not match the shape of the indexed tensor "
            f"{list(view.shape)} at that place"
        )
    xp = backend.array_module(entry.device)
    return [wrap_device_array(array, entry) for array in xp.nonzero(entry._array)]


def wrap_device_array(array: Any, like: Tensor) -> Tensor:
    """A raw integer array on the device of `like`."""
    array = array.astype(np.int64, copy=False)
    if not array.size:  # NumPy's strides of empty arrays mean nothing
        return Tensor(array, spec_of(array.shape, None, int64, like.device))
    return Tensor(array, backend.spec_of_array(array, like.device))


# --- index tensors ----------------------------------------------------------------------------------------------------


def _index_shape(input: Spec, places: tuple[int, ...], shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    broadcast = layout.broadcast_shapes(*shapes)
    kept = [size for axis, size in enumerate(input.shape) if axis not in places]
    adjacent = list(places) == list(range(places[0], places[0] + len(places)))
    at = places[0] if adjacent else 0
    return (*kept[:at], *broadcast, *kept[at:])


def _index_spec(input: Spec, places: tuple[int, ...], indices: tuple[Spec, ...]) -> Spec:
    """The result's layout: as if the input, with stride 0 along the index axes, and the indices met in an elementwise
    operator.

    Source: AdvancedIndex in PyTorch's aten/src/ATen/native/TensorAdvancedIndexing.cpp.
    """
    shapes = tuple(tuple(index.shape) for index in indices)
    shape = _index_shape(input, places, shapes)
    broadcast = layout.broadcast_shapes(*shapes)
    kept = [step for axis, step in enumerate(input.stride) if axis not in places]
    adjacent = list(places) == list(range(places[0], places[0] + len(places)))
    at = places[0] if adjacent else 0
    operands = [(shape, (*kept[:at], *(0,) * len(broadcast), *kept[at:]))]
    after = len(shape) - at - len(broadcast)
    for index in indices:
        steps = iterator.aligned_strides(broadcast, tuple(index.shape), index.stride)
        reshaped = (*(1,) * at, *broadcast, *(1,) * after)
        inner = 1 if not broadcast else max(steps[0] * broadcast[0], 1)
        operands.append((reshaped, (*(inner,) * at, *steps, *(1,) * after)))
    return input.like(shape=shape, stride=iterator.plan(tuple(operands)).stride)


def _full_key(ndim: int, places: tuple[int, ...], indices: tuple[Any, ...]) -> tuple[Any, ...]:
    key: list[Any] = [slice(None)] * ndim
    for place, index in zip(places, indices, strict=True):
        key[place] = index
    return tuple(key)


def _take(xp: ModuleType, input: Any, indices: tuple[Any, ...], places: tuple[int, ...]) -> Any:
    return input[_full_key(input.ndim, places, indices)]


def _put_back(xp: ModuleType, g: Any, indices: tuple[Any, ...], places: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    zeros = xp.zeros(shape, g.dtype)
    combine_at(xp, "add", zeros, _full_key(len(shape), places, indices), g)
    return zeros


# The two are each other's adjoint, so derivatives of any order stay among them.
INDEX = define(
    "index_get",
    rule=lambda input, indices, places: _index_spec(input, places, indices),
    forward=_take,
    backward=(
        lambda g, nd, indices, input_spec, places: nd.index_backward(g, indices, places, tuple(input_spec.shape)),
    ),
    inputs="input indices*",
    attributes="places",
)
INDEX_BACKWARD = define(
    "index_backward",
    rule=lambda input, indices, places, shape: input.like(shape=shape),
    forward=_put_back,
    backward=(lambda g, nd, indices, places: nd.index_get(g, indices, places),),
    inputs="input indices*",
    attributes="places shape",
)


def index_get(input: Tensor, indices: tuple[Tensor, ...], places: tuple[int, ...]) -> Tensor:
    """The elements at index tensors, which stand for the axes `places`."""
    return apply(INDEX, (input, *indices), (places,))


def index_backward(
    input: Tensor, indices: tuple[Tensor, ...], places: tuple[int, ...], shape: tuple[int, ...]
) -> Tensor:
    """Zeros of `shape` with `input` added at index tensors; the adjoint of `index_get`."""
    return apply(INDEX_BACKWARD, (input, *indices), (places, shape))


def _index(view: Tensor, indices: list[Any]) -> Tensor:
    places, given = _checked_indices(view, indices)
    return apply(INDEX, (view, *given), (places,))


@heard
def _checked_indices(view: Tensor, indices: list[Any]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """Places and tensors, wrapped and range-checked (a raw kernel would not name the tensor)."""
    places = tuple(axis for axis, index in enumerate(indices) if index is not None)
    given = []
    for place in places:
        index, size = indices[place], view.shape[place]
        array = index._array
        if index.is_cpu and array.size:  # a GPU's are not waited for: there an index is taken modulo the size
            low, high = int(array.min()), int(array.max())
            if low < -size or high >= size:
                raise IndexError(
                    f"index {high if high >= size else low} is out of bounds for dimension {place} with size {size}"
                )
            if low < 0:
                index = wrap_device_array(array % size, index)
        given.append(_beside(view, index))
    try:
        layout.broadcast_shapes(*(tuple(index.shape) for index in given))
    except RuntimeError:
        listed = ", ".join(str(list(index.shape)) for index in given)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {listed}"
        ) from None
    return places, tuple(given)


def _beside(view: Tensor, index: Tensor) -> Tensor:
    """An index tensor on the device of what it indexes, where host memory may be left for a GPU (or for "meta").

    Raises: RuntimeError for any other pair of devices.
    """
    if index.device is view.device:
        return index
    if not index.is_cpu:
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({view.device}), but got "
            f"one on {index.device}; move it with .to()"
        )
    return index.to(view.device)


# --- writing ----------------------------------------------------------------------------------------------------------


def setitem(self: Tensor, key: Key, value: Any) -> None:
    """`self[key] = value`, recorded."""
    if type(key) is not tuple:
        key = _as_tuple(key)
    view, indices = _basic_part(self, key)
    if not any(index is not None for index in indices):
        if isinstance(value, Tensor) and value.ndim > view.ndim:
            value = value.reshape(_without_leading_ones(value, view.ndim))
        copy_(view, _storable(value, view))
        return
    places, given = _checked_indices(view, indices)
    index_put_(view, places, given, value)


def put_at(self: Tensor, indices: tuple[Any, ...], values: Any, accumulate: bool) -> None:
    """`self[indices] = values`, or +=; index tensors and masks only."""
    view, found = self, list(indices)
    if any(isinstance(each, Tensor) and each.dtype in (bool_, uint8) for each in indices):
        view, found = _basic_part(self, indices)
    places, given = _checked_indices(view, found)
    index_put_(view, places, given, values, accumulate)


def _storable(value: Any, view: Tensor) -> Any:
    """A value that is assigned; a number only if the dtype holds it."""
    return assigned("setitem", value, view.dtype) if isinstance(value, bool | int | float | complex) else value


def _without_leading_ones(value: Tensor, ndim: int) -> tuple[int, ...]:
    shape = tuple(value.shape)
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return shape


@heard
def index_put_(
    view: Tensor, places: tuple[int, ...], given: tuple[Tensor, ...], value: Any, accumulate: bool = False
) -> Tensor:
    """Writes (or adds) `value` at index tensors."""
    from engine.autograd.modes import state

    if not isinstance(value, Tensor):
        value = make_tensor(_storable(value, view), dtype=view.dtype, device=view.device)
    check_writable(view, "index_put_", value)
    shape = _index_shape(view._spec, places, tuple(tuple(index.shape) for index in given))
    if layout.broadcast_shapes(shape, tuple(value.shape)) != shape:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        )
    key = _full_key(view.ndim, places, tuple(index._array for index in given))
    if state.grad_enabled and (view.requires_grad or value.requires_grad):
        # The history of the write: what was there where nothing was written, plus the values scattered to their places.
        kept = view.detach().new_ones(view.shape, dtype=bool_)
        kept._array[key] = accumulate
        spread = index_backward(value.to(view.dtype).expand(shape), given, places, tuple(view.shape))
        written = view * kept.to(view.dtype) + spread
        _write_at(view, key, value, accumulate)
        mark_written(view, "index_put_", True)
        adopt_history(view, written)
        return view
    _write_at(view, key, value, accumulate)
    view._bump_version("index_put_")
    return view


@heard
def _write_at(view: Tensor, key: tuple[Any, ...], value: Tensor, accumulate: bool) -> None:
    if accumulate:
        combine_at(backend.array_module(view.device), "add", view._array, key, value._array)
    else:
        view._array[key] = value._array
