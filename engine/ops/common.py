"""What operator definitions share: reading operands, common dtypes, device of a call."""

from typing import Any

import numpy as np

from engine import promotion
from engine.dtypes import BOOL_CATEGORY, FLOATING_CATEGORY, dtype, get_default_dtype
from engine.operands import UNDEFINED, Scalar
from engine.spec import Spec
from engine.tensor import Tensor


def operand(value: Any, name: str) -> Any:
    """A Tensor as it is, a Python or NumPy number as a Scalar.

    Raises: TypeError naming the operator for anything else.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool | int | float | complex):
        return Scalar(value)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        return Scalar(value.item())
    raise TypeError(f"{name}: expected a Tensor or a number, got {type(value).__name__}; make a Tensor with engine.tensor(...)")


def optional(value: Tensor | None) -> Any:
    """An optional tensor as an operand."""
    return UNDEFINED if value is None else value


def common_dtype(*specs: Spec) -> dtype:
    """The dtype in which operands meet (promotion by category: tensor, 0-dim, number)."""
    first = specs[0]
    for spec in specs:
        if spec.dtype is not first.dtype or spec.category != first.category:
            return promotion.result_dtype(tuple((spec.dtype, spec.category) for spec in specs))
    return first.dtype


def floating_dtype(*specs: Spec) -> dtype:
    """The same for operators whose result is never an integer: integers and bools become the default dtype."""
    found = common_dtype(*specs)
    return found if found.category >= FLOATING_CATEGORY else get_default_dtype()


def require_floating(name: str, spec: Spec) -> None:
    """Raises RuntimeError unless the input is of a floating point or complex dtype."""
    if spec.dtype.category < FLOATING_CATEGORY:
        raise RuntimeError(f"{name}: expected a floating point or complex input, got {spec.dtype}; convert it with .float()")


def refuse_dtypes(name: str, refused: str, specs: tuple[Spec, ...]) -> None:
    """Raises RuntimeError for operands of the refused categories ("bool", "complex") among tensors, as PyTorch does."""
    for spec in specs:
        if spec.number is not None:
            continue
        if "bool" in refused and spec.dtype.category == BOOL_CATEGORY:
            raise RuntimeError(f"{name}: not supported for bool tensors; use a logical operator (^, |, ~) or convert with .int()")
        if "complex" in refused and spec.dtype.is_complex:
            raise RuntimeError(f"{name}: not supported for complex tensors, which have no order; use .abs() or .real")


def require_real(name: str, spec: Spec) -> None:
    """Raises NotImplementedError, as PyTorch's kernels do, unless the input is of a real floating point dtype."""
    if not spec.dtype.is_floating_point:
        raise NotImplementedError(f'"{name}" not implemented for {spec.dtype} (input of shape {list(spec.shape)}); convert it with .float()')


def in_single_precision(array: Any) -> Any:
    """float16 and bfloat16 arrays as float32, in which PyTorch's CPU kernels compute; others as they are."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array
