"""Questions about tensors: `result_type`, `is_tensor`, `numel`, comparison of whole tensors."""

from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.pointwise.composed import isclose
from engine.ops.shared.operands import common_dtype, operand
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
