"""A tensor as what travels: a flat array of its elements in a stated order, and back.

The order is that of memory where the tensor is dense (its strides then have to agree on all ranks, which is checked
before anything is sent), and row-major where it is not. A dense tensor on the host travels from where it lies,
one on a GPU from a copy in page-locked memory.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

import engine
from ddp.execution.layouts import TensorLayout
from engine.autograd import graph
from engine.memory.backend import require_cupy, spec_of_array
from engine.rules import layout
from engine.tensor import array_of
from engine.tensor.flat import flat_view


def check_tensor(name: str, value: Any, written: bool = False) -> None:
    """Raises TypeError unless `value` is a Tensor; RuntimeError if it is to be written and its elements overlap."""
    if not isinstance(value, engine.Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {type(value).__name__}")
    if written and layout.internal_overlap(tuple(value.shape), tuple(value.stride())) == "yes":
        raise RuntimeError(
            f"{name}: unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location; clone() the tensor first"
        )


def check_like(name: str, tensor: engine.Tensor, shape: tuple[int, ...], like: engine.Tensor) -> None:
    """Raises ValueError unless the tensor has this shape; TypeError unless its dtype is that of `like`."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
    if tensor.dtype is not like.dtype:
        raise TypeError(f"{name}: expected {like.dtype}, got {tensor.dtype}")


def layout_of(tensor: engine.Tensor, name: str = "a tensor") -> TensorLayout:
    """What has to agree between sender and receiver."""
    return _layout_of(tensor.shape, tensor.stride(), tensor.dtype.name, name)


@lru_cache(4096)
def _layout_of(shape: tuple[int, ...], stride: tuple[int, ...], dtype: str, name: str) -> TensorLayout:
    return TensorLayout(name, tuple(shape), wire_strides(tuple(shape), tuple(stride)), dtype)


@lru_cache(4096)
def wire_strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The strides in which elements travel: those of memory where dense, else row-major.

    An axis of size 1 has the stride it has in row-major order if that makes no difference.
    """
    rows = layout.contiguous_strides(shape)
    if not layout.is_non_overlapping_and_dense(shape, stride) or layout.same_layout_modulo_size_one(
        shape, stride, rows
    ):
        return rows
    return tuple(0 if size == 1 else step for size, step in zip(shape, stride, strict=True))


def elements(tensor: engine.Tensor) -> np.ndarray:
    """1-D, in the order of `wire_strides`: the tensor's own memory where it is dense and on the host, else a copy."""
    flat = flat_view(tensor)
    if tensor.is_cuda:
        return _from_device(array_of(tensor.detach().contiguous()).reshape(-1) if flat is None else flat)
    return np.ascontiguousarray(tensor.detach().numpy()).reshape(-1) if flat is None else flat


def elements_like(tensor: engine.Tensor, like: engine.Tensor) -> np.ndarray:
    """The elements of `tensor` in the order in which those of `like`, of the same shape, travel."""
    if layout_of(tensor) == layout_of(like):
        return elements(tensor)
    flat = np.empty(tensor.numel(), tensor.dtype.numpy)
    in_shape(flat, like)[...] = tensor.detach().cpu().numpy()
    return flat


def rows_of(whole: engine.Tensor, part: engine.Tensor, ranks: int) -> np.ndarray:
    """(ranks, count): the parts of `whole`, one after another along its first dimension: the elements of each in the
    order in which those of `part` travel. Views of the tensor's memory where `rows_in_place` gives them.
    """
    rows = rows_in_place(whole, part, ranks)
    if rows is None:
        array = whole.detach().cpu().numpy().reshape(ranks, *part.shape)
        rows = np.empty((ranks, part.numel()), array.dtype)
        for row, values in zip(rows, array, strict=True):
            in_shape(row, part)[...] = values
    return rows


def rows_in_place(whole: engine.Tensor, part: engine.Tensor, ranks: int) -> np.ndarray | None:
    """The same as a view of the tensor's memory, where its elements lie there in this order, on the host; else None."""
    shape = tuple(part.shape)
    in_rows = wire_strides(shape, tuple(part.stride())) == layout.contiguous_strides(shape)
    if whole.is_cuda or not in_rows or not whole.is_contiguous():
        return None
    rows: np.ndarray = flat_view(whole).reshape(ranks, part.numel())
    return rows


def in_shape(flat: np.ndarray, like: engine.Tensor) -> np.ndarray:
    """A view, in the shape of `like`, of elements that travelled in its order."""
    shape = tuple(like.shape)
    strides = [step * flat.itemsize for step in wire_strides(shape, tuple(like.stride()))]
    return np.ndarray(shape, flat.dtype, flat.view(np.uint8).data, 0, strides)  # as_strided takes 10 µs more


def landing(tensor: engine.Tensor, like: engine.Tensor) -> np.ndarray:
    """1-D: where elements are to arrive that travel in the order of `like`, of the same shape; `settle` follows.

    The tensor's own memory where that has this order and is on the host, else room of its own.
    """
    if not tensor.is_cuda and layout_of(tensor) == layout_of(like):
        flat = flat_view(tensor)
        if flat is not None:
            return flat
    return np.empty(tensor.numel(), tensor.dtype.numpy)


def settle(tensor: engine.Tensor, flat: np.ndarray, like: engine.Tensor) -> None:
    """`store` of elements that travelled in the order of `like`, to where `landing` said or to another array."""
    if not tensor.is_cuda and np.may_share_memory(array_of(tensor), flat):
        # Even where it came into the tensor's own memory, what autograd saved of it is out of date now.
        graph.increment_version(tensor)
    else:
        store(tensor, in_shape(flat, like))


def apart(own: np.ndarray, parts: Sequence[np.ndarray], place: int) -> np.ndarray:
    """What this rank sends of a gather into `parts`: `own`, or a copy where writing to them would change it before it
    has left. It may be the part at its place.
    """
    shared = [index for index, part in enumerate(parts) if np.may_share_memory(own, part)]
    return own if not shared or (shared == [place] and _address(own) == _address(parts[place])) else own.copy()


def overlap(ones: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    """Whether any of these flat arrays shares memory with any of those."""
    spans = sorted((_address(array), array.nbytes, side) for side in (0, 1) for array in (ones, others)[side])
    ends = [0, 0]
    for begin, nbytes, side in spans:
        if nbytes and begin < ends[1 - side]:
            return True
        ends[side] = max(ends[side], begin + nbytes)
    return False


def store(tensor: engine.Tensor, values: np.ndarray) -> None:
    """Writes `values`, of the tensor's shape, into it."""
    if tensor.device.type == "cpu":
        tensor.detach().numpy()[...] = values
        graph.increment_version(tensor)
    else:
        with engine.no_grad():
            _copy_to_device(values, tensor)


def _from_device(flat: Any) -> np.ndarray:
    """A copy of a 1-D device array in page-locked memory; the host waits for it."""
    cuda = require_cupy().cuda
    host = _page_locked(flat.nbytes).view(flat.dtype)
    stream = cuda.get_current_stream()
    flat.data.copy_to_host_async(host.ctypes.data, flat.nbytes, stream)
    stream.synchronize()
    return host


def _copy_to_device(values: np.ndarray, tensor: engine.Tensor) -> None:
    """Writes an array into a tensor on a GPU, by page-locked memory; the host waits for it, whatever the stream."""
    cupy = require_cupy()
    host = _page_locked(values.nbytes).view(values.dtype)
    host.reshape(values.shape)[...] = values
    with cupy.cuda.Device(tensor.device.index):
        array = cupy.empty(values.shape, values.dtype)
        stream = cupy.cuda.get_current_stream()
        array.data.copy_from_host_async(host.ctypes.data, array.nbytes, stream)
        tensor.copy_(engine.Tensor(array, spec_of_array(array, tensor.device)))
        stream.synchronize()  # before the page-locked memory is used for something else


def _page_locked(nbytes: int) -> np.ndarray:
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(require_cupy().cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
