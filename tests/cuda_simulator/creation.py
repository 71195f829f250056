"""Making device arrays: from values of the host (a transfer) or by a kernel."""

from typing import Any

import numpy as np

from tests.cuda_simulator import arrays, calls, execution, streams
from tests.cuda_simulator.arrays import ndarray
from tests.cuda_simulator.memory import MemoryPointer, UnownedMemory, find


def array(
    obj: Any,
    dtype: Any = None,
    copy: Any = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    """`cupy.array`."""
    if isinstance(obj, ndarray):
        result = obj
        wanted = obj.dtype if dtype is None else np.dtype(dtype)
        if obj.data.device_id != streams.current_device() and obj.size:
            result = calls.copy(obj, order)
            if wanted != result.dtype:
                result = result.astype(wanted)
        elif copy or wanted != obj.dtype or not _has_order(obj, order):
            if copy is False and order == "K":
                raise ValueError("Unable to avoid copy while creating an array as requested.")
            result = obj.astype(wanted, order=order or "K", copy=bool(copy))
        while result.ndim < ndmin:
            result = result[None]
        return result
    if hasattr(obj, "__cuda_array_interface__"):
        return array(from_interface(obj), dtype, copy, order, ndmin=ndmin)
    if isinstance(obj, (list, tuple)):
        leaves: list[Any] = []
        _leaves(obj, leaves)
        if any(isinstance(each, ndarray) for each in leaves):
            from tests.cuda_simulator import module

            xp = module.cupy()
            stacked = xp.stack([array(each, dtype) for each in obj])
            return stacked if dtype is None else stacked.astype(dtype, copy=False)
    values = np.array(obj, dtype=dtype, order=order if order in ("C", "F") else "K", ndmin=ndmin)
    if values.dtype.kind in "OSUMm":
        raise ValueError(f"Unsupported dtype {values.dtype}")
    result = ndarray(values.shape, values.dtype)
    if order != "C" and values.flags.f_contiguous and not values.flags.c_contiguous:
        result = ndarray(values.shape, values.dtype, order="F")
    elif not values.flags.c_contiguous:
        values = np.ascontiguousarray(values)
    if values.ndim == 0:  # an argument of a kernel: no transfer
        arrays.store(result, Ellipsis, values[()])
    elif values.size:
        execution.copy_bytes(result.data.ptr, values.ctypes.data, values.nbytes, streams.current_queue(), "array")
        if blocking:
            streams.synchronize_queue(streams.current_queue())
    return result


def _leaves(value: Any, found: list[Any]) -> None:
    if isinstance(value, (list, tuple)):
        for each in value:
            _leaves(each, found)
    else:
        found.append(value)


def _has_order(obj: ndarray, order: str | None) -> bool:
    flags = obj.flags
    return {"C": flags.c_contiguous, "F": flags.f_contiguous, "A": flags.forc}.get(order or "K", True)


def from_interface(obj: Any) -> ndarray:
    """A view of memory that speaks the CUDA array interface."""
    interface = obj.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    pointer = interface["data"][0]
    strides = interface.get("strides")
    block = find(pointer) if pointer else None
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if strides is not None and shape:
        size = sum((length - 1) * abs(step) for length, step in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = UnownedMemory(pointer, size, obj, -1 if block is not None else 0)
    return ndarray(shape, dtype, MemoryPointer(memory, 0), strides)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    if isinstance(a, ndarray) and copy is None:
        wanted = a.dtype if dtype is None else np.dtype(dtype)
        same = a.data.device_id == streams.current_device() or not a.size
        if wanted == a.dtype and _has_order(a, order) and same:
            return a
    return array(a, dtype, True if copy is None else copy, order or "K", blocking=blocking)


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> ndarray:
    """`cupy.from_dlpack`: the size of the memory is as wrong as CuPy has it, a sum where a product belongs."""
    source = array.__dlpack__().array
    owned = UnownedMemory(source.data.ptr, sum(source.shape) * source.dtype.itemsize, source, source.data.device_id)
    return ndarray(source.shape, source.dtype, MemoryPointer(owned, 0), source.strides)


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    result = asarray(a, dtype, "C")
    return result if result.ndim else result.reshape(1)


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    result = asarray(a, dtype, "F")
    return result if result.ndim else result.reshape(1)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    """`cupy.asnumpy`."""
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)
    if hasattr(a, "__cuda_array_interface__"):
        return array(a).get(stream=stream, order=order, out=out, blocking=blocking)
    values = np.asarray(a, order=order)  # type: ignore[call-overload]
    if out is not None:
        out[...] = values
        return out
    return values


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return ndarray(shape, dtype, order=order)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, ndarray) else np.array(fill_value).dtype
    result = ndarray(shape, dtype, order=order)
    if result.size:
        arrays.store(result, Ellipsis, fill_value)
    return result


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 0, dtype, order)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    return full(shape, 1, dtype, order)


def empty_like(prototype: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    if not isinstance(prototype, ndarray):
        raise TypeError(f"Unsupported type {type(prototype)}")
    seen = arrays.host(prototype)
    like = np.empty_like(seen, dtype=dtype, order=order, subok=False, shape=shape)  # type: ignore[call-overload]
    result = ndarray(like.shape, like.dtype)
    result._strides = like.strides
    return result


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    result = empty_like(a, dtype, order, subok, shape)
    if result.size:
        arrays.store(result, Ellipsis, fill_value)
    return result


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return full_like(a, 0, dtype, order, subok, shape)


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None) -> ndarray:
    return full_like(a, 1, dtype, order, subok, shape)


def copy(a: Any, order: str = "K") -> ndarray:
    if not isinstance(a, ndarray):
        a = array(a)
    return a.copy(order=order)


def on_device(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A NumPy function of host scalars whose result a kernel makes (arange, eye, ...)."""
    return calls.call(function, name, args, kwargs)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """`cupy.copyto`."""
    if not isinstance(dst, ndarray):
        raise TypeError(f"dst must be a cupy.ndarray, not {type(dst)}")
    if isinstance(src, (np.ndarray, list, tuple)):
        raise TypeError(f"Unsupported type {type(src)}")
    kind = src.dtype if isinstance(src, (ndarray, np.generic)) else None
    if kind is not None and not np.can_cast(kind, dst.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast {kind} to {dst.dtype} in {casting} casting mode")
    if where is None:
        arrays.store(dst, Ellipsis, src)
        return
    target = arrays.host(dst)
    reads = [each for each in (src, where) if isinstance(each, ndarray)]
    given = arrays.host(src) if isinstance(src, ndarray) else src
    mask = arrays.host(where) if isinstance(where, ndarray) else where
    calls.launch("copyto", lambda: np.copyto(target, given, casting="unsafe", where=mask), reads, [dst])
