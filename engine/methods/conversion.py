"""Other dtypes and devices, and new tensors of this one's: `x.float()`, `x.cuda()`, `x.new_zeros(2)`."""

from collections.abc import Callable
from typing import Any

from engine.ops.copy import operator as copy
from engine.ops.creation import constructors, factories, from_data
from engine.rules import dtypes
from engine.rules.device import CPU
from engine.rules.layout import preserve_format
from engine.sparse import to_sparse as _to_sparse
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor


def to_dtype(name: str) -> Callable[..., Tensor]:
    """The method `x.float()`, for the dtype of a name."""
    kind = dtypes.named(name)

    def method(self: Tensor, memory_format: Any = preserve_format) -> Tensor:
        return copy.to(self, kind, memory_format=memory_format)

    method.__doc__ = f"This tensor as {kind}."
    return method


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """In the dtype and on the device of `other`."""
    return copy.to(self, other)


def type(self: Tensor, dtype: Any = None) -> Any:
    """The older name of the dtype ("engine.FloatTensor"), or a conversion to a dtype or to `engine.FloatTensor`."""
    if dtype is None:
        return next(
            (f"engine.{name}" for name, each in constructors.TYPES.items() if each.dtype is self.dtype), str(self.dtype)
        )
    return copy.to(self, dtype=getattr(dtype, "dtype", dtype))


def cpu(self: Tensor) -> Tensor:
    """In host memory."""
    return self if self.device is CPU else copy.to(self, CPU)


def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """On a GPU.

    Raises: RuntimeError saying what is missing, where there is none.
    """
    return copy.to(self, "cuda" if device is None else device, non_blocking=non_blocking)


def get_device(self: Tensor) -> int:
    """Index of the GPU, -1 for host memory."""
    return -1 if self.device.index is None else self.device.index


def _like(self: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": self.dtype, "device": self.device} | options


def new_tensor(self: Tensor, data: Any, **options: Any) -> Tensor:
    """A new leaf with the dtype and device of this one."""
    return from_data.tensor(data, **_like(self, options))


def new_empty(self: Tensor, *size: Any, **options: Any) -> Tensor:
    """Uninitialised, with the dtype and device of this one."""
    return factories.empty(*size, **_like(self, options))


def new_empty_strided(self: Tensor, size: Any, stride: Any, **options: Any) -> Tensor:
    """Uninitialised with given strides."""
    return factories.empty_strided(size, stride, **_like(self, options))


def new_zeros(self: Tensor, *size: Any, **options: Any) -> Tensor:
    """Zeros with the dtype and device of this one."""
    return factories.zeros(*size, **_like(self, options))


def new_ones(self: Tensor, *size: Any, **options: Any) -> Tensor:
    """Ones with the dtype and device of this one."""
    return factories.ones(*size, **_like(self, options))


def new_full(self: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """A constant with the dtype and device of this one."""
    return factories.full(size, fill_value, **_like(self, options))


def new(self: Tensor, *arguments: Any) -> Tensor:
    """The older form of `new_empty` (sizes) and `new_tensor` (data)."""
    return constructors.construct(arguments, self.dtype).to(self.device)


def to_sparse(self: Tensor, sparse_dim: int | None = None) -> SparseTensor:
    """Its elements other than zero with their coordinates: see `engine.sparse`."""
    return _to_sparse(self, sparse_dim)


def to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool = True) -> Tensor:
    """As it is, in `dtype` where one is given: a Tensor is dense."""
    return self if dtype is None else self.to(dtype)
