"""Copies: clone, contiguous, conversion of dtype, device and memory format. One operator, `lay_out`, does them all."""

from types import ModuleType
from typing import Any

from engine import backend, layout
from engine.device import CPU, device
from engine.dispatch import apply, define
from engine.dtypes import dtype
from engine.layout import MemoryFormat, contiguous_format, preserve_format
from engine.spec import Spec, spec_of
from engine.tensor import Tensor


def _rule(input: Spec, stride: tuple[int, ...], kind: dtype, where: device) -> Spec:
    if input.device.type == "meta" and where.type != "meta":
        raise NotImplementedError(
            f"Cannot copy out of meta tensor; no data! Make one on {where} with engine.empty_like(x, "
            f"device={str(where)!r})"
        )
    return spec_of(input.shape, stride, kind, where)


def _forward(xp: ModuleType, input: Any, stride: tuple[int, ...], kind: dtype, where: device) -> Any:
    if not isinstance(input, xp.ndarray):  # a NumPy scalar that a rule was given
        input = xp.asarray(input)
    copy = backend.empty(spec_of(input.shape, stride, kind, where))
    if copy is None:  # meta
        return None
    if where is CPU and xp is not backend.np:
        input = input.get()
    elif where is not CPU and xp is backend.np:
        copy.set(input) if copy.flags.c_contiguous and input.flags.c_contiguous else copy.__setitem__(
            ..., backend.array_module(where).asarray(input)
        )
        return copy
    if kind.category < 3 and input.dtype.kind == "c":
        input = input.real
    copy[...] = input
    return copy


LAY_OUT = define(
    "lay_out",
    rule=_rule,
    forward=_forward,
    backward=(lambda g, nd, input_spec: _back(g, nd, input_spec),),
    attributes="laid_stride laid_dtype laid_device",
)


def _back(g: Any, nd: Any, source: Spec) -> Any:
    """The gradient itself; the walker casts it to the input's dtype. Only a change of device needs a copy."""
    if nd.records:
        return g if g.device is source.device else g.to(source.device)
    on_cpu = isinstance(g, backend.np.ndarray | backend.SCALAR)
    if on_cpu == (source.device is CPU):
        return g
    return g.get() if source.device is CPU else backend.array_module(source.device).asarray(g)


def lay_out(input: Tensor, stride: tuple[int, ...], kind: dtype | None = None, where: device | None = None) -> Tensor:
    """A copy of `input` with the given strides (elements, dense), dtype and device; recorded."""
    spec = input._spec
    return apply(LAY_OUT, (input,), (stride, kind or spec.dtype, where or spec.device))


def strides_in_format(spec: Spec, memory_format: MemoryFormat) -> tuple[int, ...]:
    """Strides of a new tensor of this shape in a memory format ("preserve": the order of the original)."""
    if memory_format is preserve_format:
        return layout.preserve_strides(spec.shape, spec.stride)
    return layout.strides_for_format(spec.shape, memory_format)


def clone(input: Tensor, *, memory_format: MemoryFormat = preserve_format) -> Tensor:
    """A recorded copy; "preserve" keeps dense strides."""
    return lay_out(input, strides_in_format(input._spec, memory_format))


def contiguous(input: Tensor, memory_format: MemoryFormat = contiguous_format) -> Tensor:
    """`input` itself if it is contiguous in the format, else a copy that is."""
    if memory_format is preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator; use clone()")
    return (
        input
        if input.is_contiguous(memory_format)
        else lay_out(input, layout.strides_for_format(input._spec.shape, memory_format))
    )


def to(input: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
    """Converts dtype, device and memory format: `to(dtype)`, `to(device)`, `to(device, dtype)`, `to(other)`,
    `to(memory_format=...)`.

    Returns `input` itself when nothing changes and `copy` is false. `non_blocking` is accepted.
    """
    kind, where, wanted_format, copy = _parse_to(input, arguments, dict(keywords))
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
    return lay_out(input, stride, kind, where)


def _suggested(spec: Spec) -> MemoryFormat:
    return layout.suggest_memory_format(spec.shape, spec.stride)


def _parse_to(
    input: Tensor, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[dtype | None, device | None, MemoryFormat | None, bool]:
    kind, where = keywords.pop("dtype", None), keywords.pop("device", None)
    wanted_format, copy = keywords.pop("memory_format", None), keywords.pop("copy", False)
    keywords.pop("non_blocking", False)
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
        elif argument is not None:
            raise TypeError(f"to(): expected a dtype, a device or a Tensor, got {type(argument).__name__}")
    if kind is not None and not isinstance(kind, dtype):
        from engine.dtypes import require_dtype

        kind = require_dtype(kind)
    return kind, None if where is None else device(where), wanted_format, bool(copy or (len(flags) > 1 and flags[1]))
