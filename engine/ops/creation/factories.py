"""Tensors from nothing: empty, zeros, full, arange and the like. Those from data are in
`engine.ops.creation.from_data`, random ones in `engine.ops.random.tensors`.
"""

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.modes import state
from engine.calls.listening import heard
from engine.memory import backend, transfer
from engine.memory.guard import fill
from engine.ops.copy.operator import strides_in_format
from engine.ops.creation.from_data import empty_spec, wrap_array
from engine.ops.shared.scalars import checked
from engine.rules import layout
from engine.rules.device import CPU, default, device
from engine.rules.dims import shape_from
from engine.rules.dtypes import (
    FLOATING_CATEGORY,
    bool_,
    complex64,
    complex128,
    dtype,
    float64,
    get_default_dtype,
    int64,
    require_dtype,
)
from engine.rules.layout import MemoryFormat, contiguous_format, preserve_format
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor


def _new(spec: Spec, requires_grad: bool) -> Tensor:
    if spec.device.type == "cuda":
        backend.require_cupy()
    made = Tensor(backend.empty(spec), spec)
    if state.inference:
        made._mark_inference()
    return made.requires_grad_() if requires_grad else made


def _spec(shape: tuple[int, ...], kind: Any, where: Any, memory_format: MemoryFormat = contiguous_format) -> Spec:
    kind = get_default_dtype() if kind is None else require_dtype(kind)
    return spec_of(
        shape, layout.strides_for_format(shape, memory_format), kind, default.device if where is None else device(where)
    )


@heard
def empty(
    *sizes: Any,
    size: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat = contiguous_format,
    pin_memory: bool = False,
) -> Tensor:
    """Uninitialised. `pin_memory`: in page-locked host memory.

    Raises: RuntimeError for pinned memory elsewhere, or without a GPU.
    """
    shape = shape_from(sizes if size is None else (size,), "empty")
    spec = _spec(shape, dtype, device, memory_format)
    return _pinned(spec, requires_grad) if pin_memory else _new(spec, requires_grad)


def _pinned(spec: Spec, requires_grad: bool) -> Tensor:
    if spec.device is not CPU:
        raise RuntimeError(f"Only dense CPU tensors can be pinned, got pin_memory=True on {spec.device}")
    try:
        backend.require_cupy()
    except RuntimeError as cause:
        raise RuntimeError(f"pin_memory=True requires a CUDA or other accelerator backend; {cause}") from cause
    return Tensor(transfer.empty_pinned(spec), spec).requires_grad_(requires_grad)


@heard
def empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uninitialised, with the given strides (elements)."""
    shape = shape_from((tuple(size),), "empty_strided")
    if len(stride) != len(shape) or any(step < 0 for step in stride):
        raise RuntimeError(f"empty_strided: expected {len(shape)} non-negative strides, got {list(stride)}")
    made = _spec(shape, dtype, device)
    return _new(made.like(stride=tuple(int(step) for step in stride)), requires_grad)


def _into(out: Any, function: Any, *arguments: Any, dtype: Any, warn: bool = False) -> Tensor:
    """`out=` of a factory: in its dtype, on its device."""
    from engine.ops.writing.out import deliver

    return deliver(
        out,
        function,
        *arguments,
        dtype=dtype or getattr(out, "dtype", None),
        device=getattr(out, "device", None),
        warn=warn,
    )


@heard
def full(
    size: Any,
    fill_value: Any,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Every element `fill_value`, whose type decides the dtype unless given.

    Raises: RuntimeError for a number that the dtype does not hold.
    """
    if out is not None:
        return _into(out, full, size, fill_value, dtype=dtype)
    if dtype is None:
        dtype = bool_ if isinstance(fill_value, bool) else int64 if isinstance(fill_value, int) else get_default_dtype()
        if isinstance(fill_value, complex):
            dtype = complex128 if get_default_dtype() is float64 else complex64
    made = empty(size, dtype=dtype, device=device)
    if made._array is not None:
        value = checked("full", fill_value.item() if isinstance(fill_value, Tensor) else fill_value, made.dtype)
        fill(made._array, value)
    return made.requires_grad_() if requires_grad else made


@heard
def zeros(
    *sizes: Any,
    size: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Every element 0."""
    shape = shape_from(sizes if size is None else (size,), "zeros")
    if out is not None:
        return _into(out, zeros, shape, dtype=dtype)
    return full(shape, 0, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


@heard
def ones(
    *sizes: Any,
    size: Any = None,
    out: Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Every element 1."""
    shape = shape_from(sizes if size is None else (size,), "ones")
    if out is not None:
        return _into(out, ones, shape, dtype=dtype)
    return full(shape, 1, dtype=dtype or get_default_dtype(), device=device, requires_grad=requires_grad)


@heard
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


@heard
def full_like(input: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """Every element `fill_value`; shape, strides and dtype of `input`."""
    requires_grad = options.pop("requires_grad", False)
    made = empty_like(input, **options)
    if made._array is not None:
        value = checked("full_like", fill_value.item() if isinstance(fill_value, Tensor) else fill_value, made.dtype)
        fill(made._array, value)
    return made.requires_grad_() if requires_grad else made


@heard
def zeros_like(input: Tensor, **options: Any) -> Tensor:
    """Zeros with the shape, strides and dtype of `input`."""
    return full_like(input, 0, **options)


@heard
def ones_like(input: Tensor, **options: Any) -> Tensor:
    """Ones with the shape, strides and dtype of `input`."""
    return full_like(input, 1, **options)


@heard
def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... below `end`. An integer dtype takes `start` and `step` without their fractions, int64
    `end` as well.

    Raises: RuntimeError for bounds that are not finite, and a step of 0 or of the wrong sign; NotImplementedError for
    bools.
    """
    if out is not None:
        return _into(out, arange, start, end, step, dtype=dtype, warn=True)
    if end is None:
        start, end = 0, start
    start, end, step = (value.item() if isinstance(value, Tensor) else value for value in (start, end, step))
    if not (isfinite(start) and isfinite(end)):
        raise RuntimeError(f"arange: unsupported range: {start} -> {end}")
    if dtype is bool_:
        raise NotImplementedError('"arange" not implemented for engine.bool')
    whole = dtype is not None and require_dtype(dtype).category < FLOATING_CATEGORY
    if dtype is int64:
        if step and not int(step):
            raise ValueError(f"arange: step must be nonzero, got {step}, which int64 holds as 0")
        start, end, step = int(start), int(end), int(step)
    if step == 0:
        raise RuntimeError("arange: step must be nonzero")
    if (end - start) * step < 0:
        raise RuntimeError(
            f"arange: upper bound and lower bound inconsistent with step sign: start {start}, end {end}, step {step}"
        )
    if dtype is None:
        dtype = int64 if all(isinstance(value, int) for value in (start, end, step)) else get_default_dtype()
    count, kind = ceil((end - start) / step), require_dtype(dtype).numpy
    if whole:
        start, step = int(start), int(step)
    return _built(
        lambda xp: xp.asarray(start + step * xp.arange(count)).astype(kind, copy=False), device, requires_grad
    )


@heard
def linspace(
    start: float,
    end: float,
    steps: int,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` evenly spaced values, both ends included; the ends are numbers or 0-dim Tensors."""
    if out is not None:
        return _into(out, linspace, start, end, steps, dtype=dtype)
    start, end = _end("linspace", start), _end("linspace", end)
    kind = get_default_dtype() if dtype is None else require_dtype(dtype)
    if isinstance(steps, float):
        raise TypeError(f"linspace(): argument 'steps' (position 3) must be int, not {steps}")
    if steps < 0:
        raise RuntimeError(f"linspace: number of steps must be non-negative, got {steps}")
    return _built(lambda xp: _evenly_spaced(xp, start, end, steps, kind), device, requires_grad)


def _end(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(
                f"{name} only supports 0-dimensional start and end tensors, but got one with {value.ndim} dimension(s)."
            )
        return value.item()
    return value


def _evenly_spaced(xp: ModuleType, start: float, end: float, steps: int, kind: dtype) -> Any:
    """Counted from both ends in the precision of the dtype, as PyTorch's kernel does."""
    if kind.category < FLOATING_CATEGORY or kind.itemsize < 4:
        return xp.linspace(start, end, steps).astype(kind.numpy)
    places = xp.arange(steps).astype(kind.numpy)
    step = (kind.numpy.type(end) - kind.numpy.type(start)) / kind.numpy.type(max(steps - 1, 1))
    from_end = end - step * (steps - 1 - places)
    if steps == 1:
        from_end = places + start
    return xp.where(xp.arange(steps) < steps // 2, start + step * places, from_end).astype(kind.numpy)


@heard
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
    """base**start ... base**end, evenly spaced exponents; the ends are numbers or 0-dim Tensors."""
    start, end = _end("logspace", start), _end("logspace", end)
    if steps < 0:
        raise RuntimeError(f"logspace: number of steps must be non-negative, got {steps}")
    kind = get_default_dtype() if dtype is None else require_dtype(dtype)
    return _built(lambda xp: xp.logspace(start, end, steps, base=base).astype(kind.numpy), device, requires_grad)


@heard
def eye(
    n: int,
    m: int | None = None,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Ones on the diagonal."""
    if n < 0 or (m is not None and m < 0):
        raise RuntimeError(f"eye: sizes must be greater or equal to 0, got {n} and {m}")
    if out is not None:
        return _into(out, eye, n, m, dtype=dtype)
    kind = get_default_dtype() if dtype is None else require_dtype(dtype)
    return _built(lambda xp: xp.eye(n, m, dtype=kind.numpy), device, requires_grad)


def _built(build: Callable[[Any], Any], where: Any, requires_grad: bool) -> Tensor:
    """`build(xp)`, a fresh array from the functions of a device's array module, as a Tensor there."""
    target = default.device if where is None else device(where)
    if target.type != "cuda":
        return wrap_array(build(np), target, requires_grad)
    array = build(backend.array_module(target))
    made = Tensor(array, backend.spec_of_array(array, target) if array.size else empty_spec(array, target))
    if state.inference:
        made._mark_inference()
    return made.requires_grad_() if requires_grad else made
