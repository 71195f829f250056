"""A tensor as what travels: a flat array of its elements in a stated order, and back.

The order is that of memory where the tensor is dense (its strides then have to agree on all ranks, which is checked
before anything is sent), and row-major where it is not. A dense tensor on the host travels from where it lies,
one on a GPU from a copy in page-locked memory.
"""

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
    shape = tuple(tensor.shape)
    return TensorLayout(name, shape, wire_strides(shape, tuple(tensor.stride())), tensor.dtype.name)


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


def rows_of(whole: engine.Tensor, part: engine.Tensor, ranks: int) -> list[np.ndarray]:
    """The parts of `whole`, one after another along its first dimension: the elements of each in the order in which
    those of `part` travel.
    """
    array = whole.detach().cpu().numpy().reshape(ranks, *part.shape)
    rows = []
    for values in array:
        rows.append(np.empty(part.numel(), array.dtype))
        in_shape(rows[-1], part)[...] = values
    return rows


def in_shape(flat: np.ndarray, like: engine.Tensor) -> np.ndarray:
    """A view, in the shape of `like`, of elements that travelled in its order."""
    shape = tuple(like.shape)
    strides = [step * flat.itemsize for step in wire_strides(shape, tuple(like.stride()))]
    return np.ndarray(shape, flat.dtype, flat.view(np.uint8).data, 0, strides)  # as_strided takes 10 µs more


def store(tensor: engine.Tensor, values: np.ndarray) -> None:
    """Writes `values`, of the tensor's shape, into it."""
    if tensor.device.type == "cpu":
        array = tensor.detach().numpy()
        if not np.may_share_memory(array, values) or not _same_memory(array, values):
            array[...] = values
        # Even where MPI wrote into the tensor's own memory, what autograd saved of it is out of date now.
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


def _same_memory(array: np.ndarray, values: np.ndarray) -> bool:
    return array.__array_interface__["data"][0] == values.__array_interface__["data"][0]
