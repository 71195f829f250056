"""Copies: clone, contiguous, conversion of dtype, device and memory format. One operator, `lay_out`, does them all."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.kernels.cuda.launch import gpu_in_use
from engine.kernels.cuda.rows import aligned
from engine.memory import backend, transfer
from engine.memory.guard import copy_to_peer
from engine.ops.copy import cuda as strided
from engine.rules import layout
from engine.rules.device import CPU, device
from engine.rules.dtypes import dtype, of_numpy
from engine.rules.layout import MemoryFormat, contiguous_format, preserve_format
from engine.rules.spec import Spec, spec_of
from engine.tensor import Tensor


def _rule(input: Spec, stride: tuple[int, ...], kind: dtype, where: device, non_blocking: bool) -> Spec:
    if input.device.type == "meta" and where.type != "meta":
        raise NotImplementedError(
            f"Cannot copy out of meta tensor; no data! Make one on {where} with engine.empty_like(x, "
            f"device={str(where)!r})"
        )
    return spec_of(input.shape, stride, kind, where)


def _forward(
    xp: ModuleType, input: Any, stride: tuple[int, ...], kind: dtype, where: device, non_blocking: bool
) -> Any:
    if not isinstance(input, xp.ndarray):  # a NumPy scalar that a rule was given
        input = xp.asarray(input)
    spec = spec_of(input.shape, stride, kind, where)
    if where.type != "meta" and (where is CPU) != (xp is np):
        return _between_devices(xp, input, spec, non_blocking)
    if backend.several_gpus and where.index is not None and input.device.id != where.index:
        return copy_to_peer(_real_if(kind, input), spec)
    copy = backend.empty(spec)
    if copy is None:  # meta
        return None
    copy[...] = _real_if(kind, input)
    return copy


def _real_if(kind: dtype, array: Any) -> Any:
    """The real part of complex numbers that become real ones; others as they are."""
    return array.real if kind.category < 3 and array.dtype.kind == "c" else array


def _between_devices(xp: ModuleType, input: Any, spec: Spec, non_blocking: bool) -> Any:
    """A copy in memory of the other side, laid out as `spec` says, as one block of bytes: the elements are brought into
    their order where they are, and converted on the GPU. With `non_blocking` the CPU does not wait where the host
    memory is page-locked, which that of a result is.
    """
    if xp is np:
        kind, source, target = of_numpy(input.dtype), CPU, backend.array_module(spec.device)
    else:
        kind, source, target = spec.dtype, spec_device(input), np
    laid = spec_of(spec.shape, spec.stride, kind, source)
    if input.dtype != kind.numpy or tuple(input.strides) != laid.byte_strides:
        pinned = non_blocking and xp is np and transfer.is_pinned(input)
        ordered = transfer.empty_pinned(laid) if pinned else backend.empty(laid)
        ordered[...] = _real_if(kind, input)
        input = ordered
    sizes, axes = laid.allocation
    block = input if axes is None else input.transpose(tuple(axes.index(axis) for axis in range(spec.ndim)))
    memory: Any = target.empty(sizes, kind.numpy)
    if xp is not np:
        if non_blocking:
            memory = transfer.empty_pinned(spec_of(sizes, None, kind))
            transfer.copy_block(block, memory, wait=False)
        else:
            block.get(out=memory)
    elif transfer.is_pinned(block):
        transfer.copy_block(block, memory, wait=not non_blocking)
    else:
        memory.set(block)
    copy = memory if axes is None else memory.transpose(axes)
    if kind is spec.dtype:
        return copy
    converted = backend.empty(spec)
    converted[...] = _real_if(spec.dtype, copy)
    return converted


def spec_device(array: Any) -> device:
    """Where a raw array's memory is."""
    return CPU if isinstance(array, np.ndarray) else device("cuda", int(array.device.id))


LAY_OUT = define(
    "lay_out",
    rule=_rule,
    forward=_forward,
    backward=(
        implements(lambda g, input_spec: _back_composed(g, input_spec))(
            lambda g, nd, input_spec: _back(g, nd, input_spec)
        ),
    ),
    attributes="laid_stride laid_dtype laid_device laid_without_waiting",
)


@LAY_OUT.kernel("cuda")
def _forward_on_gpu(
    xp: ModuleType, input: Any, stride: tuple[int, ...], kind: dtype, where: device, non_blocking: bool = False
) -> Any:
    """Within one GPU by kernels that read and write along memory, whatever the two layouts are."""
    if where.type != "cuda" or where.index not in (None, input.device.id):
        return _forward(xp, input, stride, kind, where, non_blocking)
    copy = backend.empty(spec_of(input.shape, stride, kind, where))
    strided.copy(copy, _real_if(kind, input))
    return copy


@LAY_OUT.plans_for("cuda")
def _planned_on_gpu(plan: Plan) -> Callable[[Any], Any] | None:
    """The same for one plan; None between devices, of complex numbers that become real ones, and without elements."""
    (input,), out = plan.input_specs, plan.out
    if input.device is not out.device or not out.dense or not out.numel or input.dtype.is_complex:
        return None
    empty, (sizes, axes), kind = backend.device_empty, out.allocation, out.dtype.numpy
    layouts = tuple(out.shape), tuple(input.byte_strides), tuple(out.byte_strides)
    types = input.dtype.numpy, kind
    launches: dict[bool, Any] = {}

    def run(array: Any) -> Any:
        made = empty(sizes, kind)
        if axes is not None:
            made = made.transpose(axes)
        in_line = aligned(array, made)
        if in_line not in launches:
            launches[in_line] = strided.prepared(*layouts, types, in_line, gpu_in_use())
        launch = launches[in_line]
        if launch is None:
            made[...] = array
        else:
            launch(array, made)
        return made

    return run


def _back_composed(g: Any, source: Spec) -> Any:
    return g if g.device is source.device else g.to(source.device)


def _back(g: Any, nd: Any, source: Spec) -> Any:
    """The gradient itself; the walker casts it to the input's dtype. Only a change of device needs a copy."""
    on_cpu = isinstance(g, np.ndarray | backend.SCALAR)
    if on_cpu == (source.device is CPU):
        if backend.several_gpus and not on_cpu and g.device.id != source.device.index:
            return copy_to_peer(g, spec_of(g.shape, None, of_numpy(g.dtype), source.device))
        return g
    if source.device is CPU:
        return g.get()
    xp = backend.array_module(source.device)
    with xp.cuda.Device(source.device.index):
        return xp.asarray(g)


def lay_out(
    input: Tensor,
    stride: tuple[int, ...],
    kind: dtype | None = None,
    where: device | None = None,
    non_blocking: bool = False,
) -> Tensor:
    """A copy of `input` with the given strides (elements, dense), dtype and device; recorded."""
    spec = input._spec
    return apply(LAY_OUT, (input,), (stride, kind or spec.dtype, where or spec.device, non_blocking))


def converted(input: Tensor, kind: dtype) -> Tensor:
    """A recorded copy in another dtype, as `to(kind)` makes it where the dtype is another one."""
    spec = input._spec
    return lay_out(input, layout.preserve_strides(spec.shape, spec.stride), kind)


def strides_in_format(spec: Spec, memory_format: MemoryFormat) -> tuple[int, ...]:
    """Strides of a new tensor of this shape in a memory format ("preserve": the order of the original)."""
    if memory_format is preserve_format:
        return layout.preserve_strides(spec.shape, spec.stride)
    return layout.strides_for_format(spec.shape, memory_format)


@heard
def clone(input: Tensor, *, memory_format: MemoryFormat = preserve_format) -> Tensor:
    """A recorded copy; "preserve" keeps dense strides."""
    return lay_out(input, strides_in_format(input._spec, memory_format))


@heard
def contiguous(input: Tensor, memory_format: MemoryFormat = contiguous_format) -> Tensor:
    """`input` itself if it is contiguous in the format, else a copy that is."""
    if memory_format is preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator; use clone()")
    return (
        input
        if input.is_contiguous(memory_format)
        else lay_out(input, layout.strides_for_format(input._spec.shape, memory_format))
    )


@heard
def to(input: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
    """Converts dtype, device and memory format: `to(dtype)`, `to(device)`, `to(device, dtype)`, `to(other)`,
    `to(memory_format=...)`.

    Returns `input` itself when nothing changes and `copy` is false. `non_blocking`: copies between a GPU and
    page-locked host memory run on the current stream while the CPU goes on; one to the CPU may be read after
    `engine.cuda.synchronize()` or the like.
    """
    kind, where, wanted_format, copy, non_blocking = _parse_to(input, arguments, dict(keywords))
    spec = input._spec
    kind, where = kind or spec.dtype, where or spec.device
    if wanted_format is None or wanted_format is preserve_format:
        if kind is spec.dtype and where is spec.device and not copy:
            return input
        stride = layout.preserve_strides(spec.shape, spec.stride)
    else:
        stride = layout.strides_for_format(spec.shape, wanted_format)
        # PyTorch compares memory formats exactly here: an ambiguous N1HW or NC11 tensor is copied if its strides are
        # not the format's own.
        same = _suggested(spec) is wanted_format or (stride == spec.stride)
        if kind is spec.dtype and where is spec.device and not copy and same:
            return input
    return lay_out(input, stride, kind, where, non_blocking)


def _suggested(spec: Spec) -> MemoryFormat:
    return layout.suggest_memory_format(spec.shape, spec.stride)


def _parse_to(
    input: Tensor, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[dtype | None, device | None, MemoryFormat | None, bool, bool]:
    kind, where = keywords.pop("dtype", None), keywords.pop("device", None)
    wanted_format, copy = keywords.pop("memory_format", None), keywords.pop("copy", False)
    non_blocking = keywords.pop("non_blocking", False)
    if keywords:
        raise TypeError(f"to() got an unexpected keyword argument {min(keywords)!r}")
    flags = []
    for argument in arguments:
        if isinstance(argument, dtype):
            kind = argument
        elif isinstance(argument, Tensor):
            kind, where = argument.dtype, argument.device
        elif isinstance(argument, bool):
            flags.append(argument)
        elif isinstance(argument, str | int | device):
            where = argument
        elif isinstance(argument, MemoryFormat):
            wanted_format = argument
        elif isinstance(argument, type):
            kind = argument
        elif argument is not None:
            raise TypeError(f"to(): expected a dtype, a device or a Tensor, got {type(argument).__name__}")
    if kind is not None and not isinstance(kind, dtype):
        from engine.rules.dtypes import require_dtype

        kind = require_dtype(kind)
    copy = copy or (len(flags) > 1 and flags[1])
    non_blocking = non_blocking or (len(flags) > 0 and flags[0])
    return kind, None if where is None else device(where), wanted_format, bool(copy), bool(non_blocking)
