"""`Tensor(2, 3)`, `Tensor([1.0, 2.0])`, `FloatTensor`, `LongTensor` ...: constructors and switches of older code."""

from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.creation import factories, from_data
from engine.rules import dtypes
from engine.rules.spec import Size
from engine.tensor import Tensor

_DTYPES = {
    "FloatTensor": dtypes.float32,
    "DoubleTensor": dtypes.float64,
    "HalfTensor": dtypes.float16,
    "BFloat16Tensor": dtypes.bfloat16,
    "LongTensor": dtypes.int64,
    "IntTensor": dtypes.int32,
    "ShortTensor": dtypes.int16,
    "CharTensor": dtypes.int8,
    "ByteTensor": dtypes.uint8,
    "BoolTensor": dtypes.bool_,
}


def construct(arguments: tuple[Any, ...], dtype: dtypes.dtype | None = None) -> Tensor:
    """Uninitialised for sizes, an alias of a tensor, a copy of other data; in `dtype`, by default the default dtype.

    Raises: TypeError for a tensor of another dtype or arguments of the wrong kind.
    """
    kind = dtypes.get_default_dtype() if dtype is None else dtype
    if not arguments:
        return factories.empty(0, dtype=kind)
    first = arguments[0]
    if len(arguments) == 1 and not isinstance(first, Size | int | np.integer):
        if not isinstance(first, Tensor):
            return from_data.tensor(first, dtype=kind)
        if first.dtype is not kind:
            raise TypeError(f"expected {kind} (got {first.dtype}); convert it with .to({kind})")
        return first.detach()
    return factories.empty(*arguments, dtype=kind)


class _OfDtype(type):
    """`LongTensor(...)` makes a tensor of int64, and every such tensor in host memory is an instance of it."""

    dtype: dtypes.dtype

    def __call__(cls, *arguments: Any) -> Tensor:
        return construct(arguments, cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.dtype and instance.is_cpu


class _OnGpu(_OfDtype):
    """The same on the current GPU: `cuda.LongTensor(...)`."""

    def __call__(cls, *arguments: Any) -> Tensor:
        return construct(arguments, cls.dtype).cuda()

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.dtype and instance.is_cuda


TYPES = {name: _OfDtype(name, (), {"dtype": kind, "__module__": "engine"}) for name, kind in _DTYPES.items()}
TYPES_ON_GPUS = {name: _OnGpu(name, (), {"dtype": kind, "__module__": "engine.cuda"}) for name, kind in _DTYPES.items()}


@heard
def range(start: Any = 0, end: Any = None, step: Any = 1, **options: Any) -> Tensor:
    """`arange` with its end included, in the default dtype unless `dtype` says otherwise. PyTorch deprecates it."""
    if end is None:
        start, end = 0, start
    options.setdefault("dtype", dtypes.get_default_dtype())
    count = int((end - start) / step + 1e-9) + 1
    return factories.arange(count, **options) * step + start


@heard
def scalar_tensor(s: Any, **options: Any) -> Tensor:
    """A 0-dim tensor in the default dtype unless `dtype` says otherwise."""
    options.setdefault("dtype", dtypes.get_default_dtype())
    return from_data.tensor(s, **options)


def set_default_tensor_type(t: Any) -> None:
    """`set_default_dtype` by the name of a tensor class, as in "torch.DoubleTensor", or by the class itself.

    Raises: TypeError for unknown names and GPU classes, which set a device as well: use `set_default_device`.
    """
    if not isinstance(t, str):
        dtypes.set_default_dtype(t.dtype)
        return
    package, _, name = t.rpartition(".")
    if name not in TYPES or package not in ("torch", "engine"):
        raise TypeError(
            f"set_default_tensor_type: expected one of {', '.join(TYPES)}, got {t!r}; for a device use "
            "engine.set_default_device"
        )
    dtypes.set_default_dtype(TYPES[name].dtype)


def set_flush_denormal(mode: bool) -> bool:
    """False: whatever is asked, denormal numbers are computed with on the CPU, and are zeros in float32 on a GPU."""
    return False
