"""Python's operators on Tensors: `x + y`, `y + x`, `x += y`, `x < y`, `x @ y`, `-x`, `~x`."""

import operator as builtin_operators
from collections.abc import Callable
from typing import Any

import numpy as np

from engine import ops
from engine.autograd.modes import open_blocks
from engine.calls.dispatch import apply_binary, apply_unary, binary_method
from engine.calls.listening import heard
from engine.calls.namespaces import OPERATORS
from engine.ops.shared.operands import operand
from engine.ops.writing import inplace
from engine.rules.dtypes import INTEGER_CATEGORY
from engine.tensor import Tensor

Binary = Callable[[Tensor, Any], Tensor]

_NUMBERS = (bool, int, float, complex, np.generic)
_OPERANDS = (*_NUMBERS, np.ndarray, Tensor)
_MM, _AS_IT_LIES = OPERATORS["mm"], (False,)
_ORDERED = ("sub", "truediv", "floordiv", "mod", "pow", "lshift", "rshift")
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


def binary(symbol: str, name: str) -> Binary:
    """`self + other` for the symbol "add" and the operator of that name."""
    operator = OPERATORS[name]

    def number(other: Any) -> Any:
        if isinstance(other, _NUMBERS) or (isinstance(other, np.ndarray) and not other.ndim):
            return operand(other, name)
        return NotImplemented  # of an array: NumPy computes, and `Tensor.__array_wrap__` makes a Tensor of the result

    made = binary_method(operator, number)
    return _named(f"__{symbol}__", heard(made) if name == "pow" else made, f"`self {_SIGNS[symbol]} other`", name)


def reflected(symbol: str, name: str) -> Binary:
    """`other + self`, where `other` is no Tensor."""
    operator, ordered = OPERATORS[name], symbol in _ORDERED
    in_numpy = getattr(builtin_operators, f"__{symbol}__")

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim:
            return self.__array_wrap__(in_numpy(other, self.__array__()))
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        value = operand(other, name)
        return apply_binary(operator, value, self) if ordered else apply_binary(operator, self, value)

    told = heard(method) if name in ("pow", "div") else method
    return _named(f"__r{symbol}__", told, f"`other {_SIGNS[symbol]} self`, where `other` is no Tensor", name)


def in_place(symbol: str, name: str) -> Binary:
    """`self += other`."""
    operator = OPERATORS[name]

    def method(self: Tensor, other: Any) -> Tensor:
        return inplace.inplace(operator, self, (operand(other, f"{name}_"),))

    return _named(f"__i{symbol}__", method, f"`self {_SIGNS[symbol]}= other`, in this memory", name)


def _named(name: str, method: Any, text: str, function: str) -> Any:
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", f"{text}: see `engine.{function}`."
    return method


def matmul(self: Tensor, other: Any) -> Tensor:
    """`self @ other`: see `engine.matmul`."""
    if not open_blocks.open and other.__class__ is Tensor and self._spec.ndim == 2 and other._spec.ndim == 2:
        return apply_binary(_MM, self, other, _AS_IT_LIES)
    return ops.matmul(self, other) if isinstance(other, Tensor) else NotImplemented


def reflected_matmul(self: Tensor, other: Any) -> Tensor:
    """`array @ self`: NumPy computes, and the result is a Tensor."""
    return self.__array_wrap__(other @ self.__array__()) if isinstance(other, np.ndarray) else NotImplemented


def negative(self: Tensor) -> Tensor:
    """`-self`: see `engine.neg`."""
    return apply_unary(OPERATORS["neg"], self)


def positive(self: Tensor) -> Tensor:
    """`+self`: the tensor itself."""
    return self


def invert(self: Tensor) -> Tensor:
    """`~self`: see `engine.bitwise_not`. Raises: TypeError for floating point and complex tensors."""
    if self.dtype.category > INTEGER_CATEGORY:
        raise TypeError(
            f"~ (operator.invert) is only implemented on integer and Boolean-type tensors, got {self.dtype}; compare "
            "first, as in ~(x > 0)"
        )
    return ops.bitwise_not(self)
