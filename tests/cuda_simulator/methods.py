"""Operators and methods of `ndarray`: the functions of the same names."""

import operator
from typing import Any

import numpy as np

from tests.cuda_simulator import api, arrays, calls, functions, ufuncs
from tests.cuda_simulator.arrays import ndarray

_BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
    "divmod": "divmod",
}
_COMPARED = {
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}
_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
# Methods that call cupy's function of the same name with the array first.
_FUNCTIONS = (
    *("all", "any", "argmax", "argmin", "argsort", "argpartition", "choose", "clip", "compress", "conj", "cumprod"),
    *("cumsum", "diagonal", "dot", "max", "mean", "min", "nonzero", "prod", "ptp", "repeat", "round", "searchsorted"),
    *("squeeze", "std", "sum", "swapaxes", "take", "trace", "var"),
)


def add_to(cls: type, xp: Any) -> None:
    """Gives `cls` its operators and methods, from the module `xp`."""
    for name, function in _BINARY.items():
        _set(cls, f"__{name}__", _operation(xp, function, False))
        _set(cls, f"__r{name}__", _operation(xp, function, True))
        if name != "divmod":
            _set(cls, f"__i{name}__", _in_place(xp, function))
    for name, function in _COMPARED.items():
        _set(cls, f"__{name}__", _operation(xp, function, False))
    for name, function in _UNARY.items():
        _set(cls, f"__{name}__", _unary(xp, function))
    _set(cls, "__matmul__", lambda self, other: _defer(self, other) or xp.matmul(self, other))
    _set(cls, "__rmatmul__", lambda self, other: xp.matmul(other, self))
    for name in _FUNCTIONS:
        _set(cls, name, _method(xp, name))
    for method in (reshape, ravel, flatten, transpose, sort, partition, put, scatter_add, scatter_max, scatter_min):
        _set(cls, method.__name__, method)
    _set(cls, "conjugate", _method(xp, "conj"))


def _set(cls: type, name: str, function: Any) -> None:
    entry = name in api.snapshot()["classes"]["cupy.ndarray"] or name in dir(object)
    if entry:
        setattr(cls, name, function)


def _defer(self: Any, other: Any) -> Any:
    """NotImplemented for an object of another library that wants to be asked."""
    if not isinstance(other, (ndarray, np.ndarray, np.generic)) and getattr(other, "__array_ufunc__", 0) is None:
        return NotImplemented
    return None


def _operation(xp: Any, name: str, swapped: bool) -> Any:
    def run(self: Any, other: Any) -> Any:
        deferred = _defer(self, other)
        if deferred is not None:
            return deferred
        if name in ("equal", "not_equal") and (other is None or isinstance(other, str)):
            raise TypeError(f"Unsupported type {type(other)}")
        function = getattr(xp, name)
        return function(other, self) if swapped else function(self, other)

    return run


def _in_place(xp: Any, name: str) -> Any:
    def run(self: Any, other: Any) -> Any:
        return getattr(xp, name)(self, other, self)

    return run


def _unary(xp: Any, name: str) -> Any:
    return lambda self: getattr(xp, name)(self)


def _method(xp: Any, name: str) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        api.check_call("cupy.ndarray", name, args, kwargs)
        return getattr(xp, name)(self, *args, **kwargs)

    run.__name__ = name
    return run


def reshape(self: ndarray, *shape: Any, order: str = "C", copy: Any = None) -> ndarray:
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        (shape,) = shape
    for each in shape:
        operator.index(each)
    result = calls.call(lambda seen: seen.reshape(shape, order=order), "reshape", (self,), {})
    if result.shape != self.shape and result.size:
        axes = range(result.ndim) if order != "F" else range(result.ndim - 1, -1, -1)
        result._strides = _reshaped(result, axes)
    return result


def _reshaped(array: ndarray, axes: Any) -> tuple[int, ...]:
    """CuPy's strides after a reshape: an axis of length 1 has that of the axis before it."""
    strides = list(array.strides)
    before = next((strides[axis] * array.shape[axis] for axis in axes if array.shape[axis] > 1), array.itemsize)
    for axis in axes:
        if array.shape[axis] == 1:
            strides[axis] = before
        before = strides[axis]
    return tuple(strides)


def ravel(self: ndarray, order: str = "C") -> ndarray:
    return calls.call(lambda seen: seen.ravel(order), "ravel", (self,), {})


def flatten(self: ndarray, order: str = "C") -> ndarray:
    return calls.call(lambda seen: seen.flatten(order), "flatten", (self,), {})


def transpose(self: ndarray, *axes: Any) -> ndarray:
    return arrays.view_of(self, arrays.host(self).transpose(*axes))


def sort(self: ndarray, axis: int = -1, *, kind: Any = None) -> None:
    target = arrays.host(self)
    calls.launch("sort", lambda: target.sort(axis, kind="stable"), [self], [self])


def partition(self: ndarray, kth: Any, axis: int = -1) -> None:
    target = arrays.host(self)
    calls.launch("partition", lambda: target.partition(kth, axis), [self], [self])


def put(self: ndarray, indices: Any, values: Any, mode: str = "wrap") -> None:
    functions.put(self, indices, values, mode)


def scatter_add(self: ndarray, slices: Any, value: Any) -> None:
    ufuncs.scatter(np.add, "scatter_add", self, slices, value)


def scatter_max(self: ndarray, slices: Any, value: Any) -> None:
    ufuncs.scatter(np.maximum, "scatter_max", self, slices, value)


def scatter_min(self: ndarray, slices: Any, value: Any) -> None:
    ufuncs.scatter(np.minimum, "scatter_min", self, slices, value)
