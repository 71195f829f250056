"""Tensors from nothing: empty, zeros, full, arange, from data, from NumPy. Random ones are in `engine.ops.random`."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from engine import backend, layout
from engine.device import CPU, device
from engine.dtypes import (
    bool_,
    complex64,
    complex128,
    dtype,
    float64,
    get_default_dtype,
    int64,
    of_numpy,
    require_dtype,
)
from engine.layout import MemoryFormat, contiguous_format, preserve_format
from engine.ops.copy import strides_in_format
from engine.spec import Spec, spec_of
from engine.tensor import Tensor

default_device = CPU


def shape_from(size: tuple[Any, ...], name: str) -> tuple[int, ...]:
    """`f(2, 3)` and `f((2, 3))` alike.

    Raises: RuntimeError for a negative size; TypeError for anything that is no integer.
    """
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = tuple(size[0])
    try:
        shape = tuple(n.__index__() for n in size)
    except AttributeError:
        raise TypeError(f"{name}(): sizes must be integers, got {size!r}") from None
    if any(n < 0 for n in shape):
        raise RuntimeError(f"{name}: Trying to create tensor with negative dimension {min(shape)}: {list(shape)}")
    return shape


def _new(spec: Spec, requires_grad: bool) -> Tensor:
    if spec.device.type == "cuda":
        backend.require_cupy()
    made = Tensor(backend.empty(spec), spec)
    return made.requires_grad_() if requires_grad else made


def _spec(shape: tuple[int, ...], kind: Any, where: Any, memory_format: MemoryFormat = contiguous_format) -> Spec:
    kind = get_default_dtype() if kind is None else require_dtype(kind)
    return spec_of(
        shape, layout.strides_for_format(shape, memory_format), kind, default_device if where is None else device(where)
    )


def empty(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = contiguous_format,
    pin_memory: bool = False,
) -> Tensor:
    """Uninitialised. `pin_memory` has a meaning on GPUs only."""
    return _new(_spec(shape_from(size, "empty"), dtype, device, memory_format), requires_grad)


def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uninitialised, with the given strides (elements)."""
    shape = shape_from((tuple(size),), "empty_strided")
    if len(stride) != len(shape) or any(step < 0 for step in stride):
        raise RuntimeError(f"empty_strided: expected {len(shape)} non-negative strides, got {list(stride)}")
    made = _spec(shape, dtype, device)
    return _new(made.like(stride=tuple(int(step) for step in stride)), requires_grad)


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Every element `fill_value`, whose type decides the dtype unless given."""
    if dtype is None:
        dtype = bool_ if isinstance(fill_value, bool) else int64 if isinstance(fill_value, int) else get_default_dtype()
        if isinstance(fill_value, complex):
            dtype = complex128 if get_default_dtype() is float64 else complex64
    made = empty(size, dtype=dtype, device=device)
    if made._array is not None:
        made._array.fill(fill_value.item() if isinstance(fill_value, Tensor) else fill_value)
    return made.requires_grad_() if requires_grad else made


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Every element 0."""
    return full(
        shape_from(size, "zeros"), 0, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad
    )


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Every element 1."""
    return full(
        shape_from(size, "ones"), 1, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad
    )


def empty_like(
    input: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = preserve_format,
) -> Tensor:
    """Uninitialised, with the shape and (by default) the dense strides of `input`."""
    spec = input._spec
    kind = spec.dtype if dtype is None else require_dtype(dtype)
    where = spec.device if device is None else device_of(device)
    return _new(spec_of(spec.shape, strides_in_format(spec, memory_format), kind, where), requires_grad)


def device_of(value: Any) -> device:
    """A device from a string, an index or a device."""
    return device(value)


def full_like(input: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """Every element `fill_value`; shape, strides and dtype of `input`."""
    requires_grad = options.pop("requires_grad", False)
    made = empty_like(input, **options)
    if made._array is not None:
        made._array.fill(fill_value)
    return made.requires_grad_() if requires_grad else made


def zeros_like(input: Tensor, **options: Any) -> Tensor:
    """Zeros with the shape, strides and dtype of `input`."""
    return full_like(input, 0, **options)


def ones_like(input: Tensor, **options: Any) -> Tensor:
    """Ones with the shape, strides and dtype of `input`."""
    return full_like(input, 1, **options)


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ... below `end`."""
    if end is None:
        start, end = 0, start
    start, end, step = (value.item() if isinstance(value, Tensor) else value for value in (start, end, step))
    if step == 0:
        raise RuntimeError("arange: step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"arange: upper bound and lower bound inconsistent with step sign: start {start}, end {end}, step {step}"
        )
    if dtype is None:
        dtype = int64 if all(isinstance(value, int) for value in (start, end, step)) else get_default_dtype()
    count = ceil((end - start) / step)
    return wrap_array(
        np.asarray(start + step * np.arange(count)).astype(require_dtype(dtype).numpy), device, requires_grad
    )


def linspace(
    start: float, end: float, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` evenly spaced values, both ends included."""
    kind = get_default_dtype() if dtype is None else require_dtype(dtype)
    return wrap_array(np.linspace(start, end, steps).astype(kind.numpy), device, requires_grad)


def logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """base**start ... base**end, evenly spaced exponents."""
    kind = get_default_dtype() if dtype is None else require_dtype(dtype)
    return wrap_array(np.logspace(start, end, steps, base=base).astype(kind.numpy), device, requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal."""
    kind = get_default_dtype() if dtype is None else require_dtype(dtype)
    return wrap_array(np.eye(n, m, dtype=kind.numpy), device, requires_grad)


def wrap_array(array: np.ndarray, where: Any = None, requires_grad: bool = False) -> Tensor:
    """A fresh host array as a Tensor on `where`."""
    made = Tensor(array, backend.spec_of_array(array))
    target = default_device if where is None else device(where)
    if target is not CPU:
        made = made.to(target)
    return made.requires_grad_() if requires_grad else made


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor on the memory of a NumPy array.

    Raises: TypeError for something else or an unsupported dtype; ValueError for negative strides and foreign byte
    order.
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
    if type(array) is not np.ndarray:
        array = array.view(np.ndarray)
    return Tensor(array, backend.spec_of_array(array))


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
    if array.dtype == object or array.dtype.kind in "USO":
        raise TypeError(
            f"tensor: could not infer dtype of {type(data).__name__}; expected numbers, nested sequences of numbers, "
            f"an array or a Tensor"
        )
    if kind is None:
        if array.dtype == np.float64 and not _holds_numpy_float64(data):
            kind = get_default_dtype()
        elif array.dtype == np.complex128:
            kind = complex128 if get_default_dtype() is float64 else complex64
        elif array.size == 0:
            kind = get_default_dtype()
        else:
            kind = of_numpy(array.dtype)
    return array.astype(kind.numpy)


def _holds_numpy_float64(data: Any) -> bool:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, np.ndarray | np.generic)


def _without_tensors(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.detach().cpu().numpy() if data.ndim else data.item()
    return [_without_tensors(item) for item in data] if isinstance(data, list | tuple) else data


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` itself, shared memory with a NumPy array, or a copy: whichever is cheapest."""
    if isinstance(data, Tensor):
        return data.to(device=device, dtype=dtype)
    if isinstance(data, np.ndarray) and not any(step < 0 for step in data.strides):
        return from_numpy(data).to(device=device, dtype=dtype)
    return tensor(data, dtype=dtype, device=device)


def from_dlpack(source: Any) -> Tensor:
    """A Tensor on memory exported through DLPack."""
    return Tensor(array := np.from_dlpack(source), backend.spec_of_array(array))


asarray = as_tensor
