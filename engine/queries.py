"""Questions about tensors: `result_type`, `is_tensor`, `numel`, comparison of whole tensors."""

from typing import Any

from engine import methods
from engine.dtypes import dtype
from engine.ops.common import common_dtype, operand
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


equal = methods.equal
allclose = methods.allclose
