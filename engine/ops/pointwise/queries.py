"""Questions about tensors: `result_type`, `is_tensor`, `numel`, comparison of whole tensors."""

from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.pointwise.composed import isclose
from engine.ops.shared.operands import common_dtype, operand
from engine.rules import dtypes
from engine.rules.dtypes import dtype
from engine.tensor import Tensor


def result_type(tensor1: Any, tensor2: Any) -> dtype:
    """The dtype two operands (Tensors or numbers) promote to."""
    return common_dtype(operand(tensor1, "result_type")._spec, operand(tensor2, "result_type")._spec)


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a floating point type."""
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex."""
    return input.is_complex()


def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.numel()


@heard
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal."""
    return input.shape == other.shape and bool((input.detach()._array == other.detach()._array).all())


@heard
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether |input - other| <= atol + rtol * |other| everywhere."""
    if input.dtype is not other.dtype:
        raise RuntimeError(f"allclose: {input.dtype} did not match {other.dtype}; convert one with .to()")
    if input.is_cuda or other.is_cuda:
        return bool(isclose(input, other, rtol, atol, equal_nan).all())
    return bool(np.allclose(input.detach()._array, other.detach()._array, rtol, atol, equal_nan))


@heard
def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not 0. Raises: RuntimeError unless there is exactly one."""
    if input.numel() != 1:
        raise RuntimeError(
            "Boolean value of Tensor with no values is ambiguous"
            if not input.numel()
            else "Boolean value of Tensor with more than one value is ambiguous"
        )
    return bool(input.item() != 0)


@heard
def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether the shapes are equal."""
    return input.shape == other.shape


@heard
def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return input.dtype not in (dtypes.uint8, dtypes.bool_)


def typename(obj: Any) -> str:
    """The name of a class with its module; for tensors that of `Tensor.type()`."""
    if isinstance(obj, Tensor):
        return obj.type()
    kind = obj if isinstance(obj, type) else type(obj)
    name = getattr(obj, "__qualname__", kind.__qualname__)
    module = getattr(obj, "__module__", kind.__module__)
    return name if module in (None, "builtins") else f"{module}.{name}"


def get_device(input: Tensor) -> int:
    """Index of the GPU of a tensor, -1 for host memory."""
    return input.get_device()


def is_inference(input: Tensor) -> bool:
    """Whether the tensor was made in inference mode."""
    return input.is_inference()
