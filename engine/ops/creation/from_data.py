"""Tensors from data: Python's numbers and lists, NumPy's arrays, what exports DLPack or CUDA's array interface."""

from typing import Any

import numpy as np

from engine.autograd.modes import state
from engine.calls.listening import heard
from engine.memory import backend
from engine.ops.shared.scalars import checked
from engine.rules.device import CPU, default, device
from engine.rules.dtypes import (
    FLOATING_CATEGORY,
    INTEGER_CATEGORY,
    complex64,
    complex128,
    dtype,
    float64,
    get_default_dtype,
    of_numpy,
    require_dtype,
)
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor


def empty_spec(array: Any, where: device = CPU) -> Spec:
    """Row-major: NumPy's and CuPy's strides of empty arrays mean nothing."""
    return spec_of(array.shape, None, of_numpy(array.dtype), where)


def wrap_array(array: np.ndarray, where: Any = None, requires_grad: bool = False) -> Tensor:
    """A fresh host array as a Tensor on `where`."""
    made = Tensor(array, backend.spec_of_array(array) if array.size else empty_spec(array))
    if state.inference:
        made._mark_inference()
    target = default.device if where is None else device(where)
    if target is not CPU:
        made = made.to(target)
    return made.requires_grad_() if requires_grad else made


@heard
def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor on the memory of a NumPy array.

    Raises: TypeError for something else or an unsupported dtype; ValueError for negative strides, foreign byte order,
    and elements that do not lie at multiples of their size in memory.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
    if any(step < 0 for step in array.strides):
        raise ValueError("from_numpy: negative strides are not supported; pass array.copy()")
    if not array.dtype.isnative:
        raise ValueError(
            f"from_numpy: byte order of {array.dtype} is not the machine's; convert it with "
            f"array.astype({array.dtype.newbyteorder('=')!r})"
        )
    of_numpy(array.dtype)
    if any(step % array.itemsize for step in array.strides):
        raise ValueError("from_numpy: strides are not a multiple of the element size; pass array.copy()")
    if not array.flags.aligned:
        raise ValueError(
            f"from_numpy: elements of {array.dtype} lie at addresses that are no multiples of {array.dtype.alignment}, "
            "as in a buffer behind a header of an odd length; pass array.copy()"
        )
    if type(array) is not np.ndarray:
        array = array.view(np.ndarray)
    return Tensor(array, backend.spec_of_array(array))


@heard
def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A new leaf with a copy of `data`: numbers, nested sequences, NumPy arrays or Tensors."""
    if isinstance(data, Tensor):
        made = (
            data.detach().clone()
            if dtype is None and device is None
            else data.detach().to(device=device, dtype=dtype, copy=True)
        )
        return made.requires_grad_() if requires_grad else made
    kind = None if dtype is None else require_dtype(dtype)
    if hasattr(data, "__cuda_array_interface__"):
        made = _on_its_gpu(data).to(device=device, dtype=kind, copy=True)
        return made.requires_grad_() if requires_grad else made
    if isinstance(data, np.ndarray | np.generic):
        array = np.array(data, dtype=None if kind is None else kind.numpy)
        of_numpy(array.dtype)
    else:
        array = _array_from(data, kind)
    return wrap_array(array, device, requires_grad)


def _array_from(data: Any, kind: dtype | None) -> np.ndarray:
    try:
        array = np.array(_without_tensors(data))
    except ValueError as cause:
        raise ValueError(f"tensor: expected nested sequences of equal length at each level ({cause})") from None
    if array.dtype.kind not in "biufc":
        array = _large_integers(array, data, kind)
    if array.dtype == np.uint64 and (kind is None or kind.category < FLOATING_CATEGORY):
        raise ValueError(f"tensor: Overflow when unpacking long long: expected integers below 2**63, got {array.max()}")
    if kind is None:
        if array.dtype == np.float64 and not _holds_numpy_float64(data):
            kind = get_default_dtype()
        elif array.dtype == np.complex128:
            kind = complex128 if get_default_dtype() is float64 else complex64
        elif array.size == 0:
            kind = get_default_dtype()
        else:
            kind = of_numpy(array.dtype)
    elif array.dtype.kind == "c" and not kind.is_complex:
        raise TypeError(f"tensor: must be real number, not complex: dtype {kind} holds none; use engine.complex64")
    elif array.size and kind.category == INTEGER_CATEGORY:
        for extreme in (array.min(), array.max()):
            checked("tensor", extreme.item(), kind)
    return array.astype(kind.numpy)


def _large_integers(array: np.ndarray, data: Any, kind: dtype | None) -> np.ndarray:
    """Python integers beyond 64 bits, which NumPy leaves as objects, as floating point numbers.

    Raises: for anything else that is no number, RuntimeError, ValueError or TypeError as PyTorch does.
    """
    expected = "expected numbers, nested sequences of numbers, an array or a Tensor"
    if array.dtype.kind in "US":
        if array.ndim:
            raise ValueError(f"tensor: too many dimensions 'str': {expected}, got strings")
        raise TypeError(f"tensor: invalid data type 'str': {expected}")
    wrong = next((item for item in array.ravel() if not isinstance(item, int)), None) if array.dtype == object else data
    if wrong is not None or not array.size or None in array.ravel():
        raise RuntimeError(f"tensor: Could not infer dtype of {type(wrong).__name__}: {expected}")
    if kind is None or kind.category < FLOATING_CATEGORY:
        raise ValueError(f"tensor: Overflow when unpacking long long: expected integers below 2**63, got {array.max()}")
    return array.astype(np.float64)


def _holds_numpy_float64(data: Any) -> bool:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, np.ndarray | np.generic)


def _without_tensors(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.detach().cpu().numpy() if data.ndim else data.item()
    return [_without_tensors(item) for item in data] if isinstance(data, list | tuple) else data


@heard
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` itself, shared memory with a NumPy array (or one of CUDA's array interface), or a copy: whichever is
    cheapest.
    """
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)
    if hasattr(data, "__cuda_array_interface__"):
        return _on_its_gpu(data).to(device=device, dtype=dtype)
    if isinstance(data, np.ndarray) and not any(step < 0 for step in data.strides):
        return from_numpy(data).to(device=device, dtype=dtype)
    return tensor(data, dtype=dtype, device=device)


def _on_its_gpu(data: Any) -> Tensor:
    """A Tensor on the memory of an object with CUDA's array interface."""
    array = backend.require_cupy().asarray(data)
    where = device(f"cuda:{int(array.device.id)}")
    return Tensor(array, backend.spec_of_array(array, where) if array.size else empty_spec(array, where))


_DLPACK_GPU = 2  # kDLCUDA


@heard
def from_dlpack(source: Any) -> Tensor:
    """A Tensor on memory exported through DLPack."""
    if source.__dlpack_device__()[0] == _DLPACK_GPU:
        array = backend.require_cupy().from_dlpack(source)
        block = array.data.mem
        # CuPy adds the lengths of the axes up where it should multiply them
        reach = sum((size - 1) * max(step, 0) for size, step in zip(array.shape, array.strides, strict=True))
        block.size = array.data.ptr - block.ptr + reach + array.dtype.itemsize if array.size else 0
        return _on_its_gpu(array)
    return Tensor(array := np.from_dlpack(source), backend.spec_of_array(array))


asarray = as_tensor


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule that other libraries read; `from_dlpack` takes the tensor itself as well."""
    return tensor.__dlpack__()


def frombuffer(buffer: Any, *, dtype: dtype, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A 1-D tensor on the memory of an object with the buffer protocol, from byte `offset` on.

    Raises: ValueError for a buffer that is too small or empty; a buffer that must not be written is copied.
    """
    array = np.frombuffer(buffer, dtype.numpy, count, offset)
    made = from_numpy(array if array.flags.writeable else array.copy())
    return made.requires_grad_() if requires_grad else made
