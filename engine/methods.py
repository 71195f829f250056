"""Attaches operators to Tensor: methods, Python operators, in-place twins. Importing this module is what makes Tensors
usable.
"""

import operator as builtin_operators
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from engine import dtypes, layout, ops
from engine.device import CPU
from engine.dispatch import Operator, apply_binary, apply_unary, binary_method
from engine.dtypes import INTEGER_CATEGORY
from engine.layout import contiguous_format, preserve_format
from engine.namespaces import OPERATORS
from engine.ops import along_axis, copy, factories, from_data, index, inplace, masked, random, selection, views
from engine.ops.common import operand
from engine.ops.out import resized
from engine.ops.view_history import become_view
from engine.tensor import Tensor

# Functions of engine.ops whose first argument is the tensor they are called on.
_METHODS = """
abs acos acosh all amax amin any argmax argmin as_strided asin asinh atan atan2 atanh baddbmm addmm bernoulli
bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_to ceil chunk clamp clip clone contiguous cos cosh
cumprod cumsum diagonal div dot eq exp exp2 expand expand_as expm1 flatten flip floor floor_divide fmax fmin fmod
gather ge gt hypot index_select isfinite isinf isnan le lerp log log10 log1p log2 logaddexp logical_and logical_not
logical_or logical_xor logsumexp lt masked_fill masked_select matmul max maximum mean min minimum mm moveaxis movedim
mul multinomial mv narrow ne neg nonzero norm outer permute positive pow prod reciprocal remainder repeat
repeat_interleave reshape roll round rsqrt relu scatter scatter_add select sigmoid sign signbit sin sinh split sqrt
square squeeze std sub sum swapaxes swapdims t take take_along_dim tan tanh tensor_split tile to transpose tril triu
trunc unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze var view add
""".split()  # noqa: SIM905 - a list would take a line a name

_ALIASES = {
    "negative": "neg",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "absolute": "abs",
    "arctan": "atan",
    "greater": "gt",
    "less": "lt",
}

# Pointwise operators with an in-place method.
_INPLACE = [
    "abs",
    "add",
    "atan",
    "ceil",
    "clamp",
    "cos",
    "div",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "lerp",
    "log",
    "log1p",
    "logical_and",
    "logical_not",
    "logical_or",
    "maximum",
    "minimum",
    "mul",
    "neg",
    "pow",
    "reciprocal",
    "remainder",
    "relu",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "trunc",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]


Method = TypeVar("Method", bound=Callable[..., Any])

_NUMBERS = (bool, int, float, complex, np.generic)
_OPERANDS = (*_NUMBERS, np.ndarray, Tensor)


def _binary(operator: Operator) -> Callable[[Tensor, Any], Any]:
    def number(other: Any) -> Any:
        if isinstance(other, _NUMBERS) or (isinstance(other, np.ndarray) and not other.ndim):
            return operand(other, operator.name)
        return NotImplemented  # of an array: NumPy computes, and `Tensor.__array_wrap__` makes a Tensor of the result

    return binary_method(operator, number)


def _reflected(operator: Operator, ordered: bool, in_numpy: Callable[[Any, Any], Any]) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim:
            return self.__array_wrap__(in_numpy(other, self.__array__()))
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        value = operand(other, operator.name)
        return apply_binary(operator, value, self) if ordered else apply_binary(operator, self, value)

    return method


def _matmul(self: Tensor, other: Any) -> Any:
    """`self @ other`: see `engine.matmul`."""
    return ops.matmul(self, other) if isinstance(other, Tensor) else NotImplemented


def _reflected_matmul(self: Tensor, other: Any) -> Any:
    """`array @ self`: NumPy computes, and the result is a Tensor."""
    return self.__array_wrap__(other @ self.__array__()) if isinstance(other, np.ndarray) else NotImplemented


def _inplace_operator(operator: Operator) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Any) -> Tensor:
        return inplace.inplace(operator, self, (operand(other, f"{operator.name}_"),))

    return method


def _negative(self: Tensor) -> Tensor:
    """`-self`: see `engine.neg`."""
    return apply_unary(OPERATORS["neg"], self)


def _positive(self: Tensor) -> Tensor:
    """`+self`: the tensor itself."""
    return self


def _invert(self: Tensor) -> Tensor:
    """`~self`: see `engine.bitwise_not`. Raises: TypeError for floating point and complex tensors."""
    if self.dtype.category > INTEGER_CATEGORY:
        raise TypeError(
            f"~ (operator.invert) is only implemented on integer and Boolean-type tensors, got {self.dtype}; compare "
            "first, as in ~(x > 0)"
        )
    return ops.bitwise_not(self)


_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_BITS = {"and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_SIGNS = _ARITHMETIC | _BITS | _COMPARISONS


def _attach(name: str, method: Any, text: str) -> None:
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", text
    setattr(Tensor, name, method)


def _attach_operators() -> None:
    symmetric = {"add": "add", "mul": "mul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
    ordered = {
        "sub": "sub",
        "truediv": "div",
        "floordiv": "floor_divide",
        "mod": "remainder",
        "pow": "pow",
        "lshift": "bitwise_left_shift",
        "rshift": "bitwise_right_shift",
    }
    for symbol, name in (symmetric | ordered).items():
        operator = OPERATORS[name]
        sign, see = _SIGNS[symbol], f"see `engine.{name}`"
        _attach(f"__{symbol}__", _binary(operator), f"`self {sign} other`: {see}.")
        in_numpy = getattr(builtin_operators, f"__{symbol}__")
        reflected = _reflected(operator, symbol in ordered, in_numpy)
        _attach(f"__r{symbol}__", reflected, f"`other {sign} self`, where `other` is no Tensor: {see}.")
        _attach(f"__i{symbol}__", _inplace_operator(operator), f"`self {sign}= other`, in this memory: {see}.")
    for symbol in _COMPARISONS:
        _attach(f"__{symbol}__", _binary(OPERATORS[symbol]), f"`self {_SIGNS[symbol]} other`: see `engine.{symbol}`.")
    Tensor.__matmul__ = _matmul  # type: ignore[method-assign]
    Tensor.__rmatmul__ = _reflected_matmul  # type: ignore[method-assign]
    Tensor.__neg__ = _negative  # type: ignore[method-assign]
    for symbol, function in {"pos": _positive, "abs": ops.abs, "invert": _invert}.items():
        setattr(Tensor, f"__{symbol}__", function)
    Tensor.__getitem__ = index.getitem  # type: ignore[method-assign]
    Tensor.__setitem__ = index.setitem  # type: ignore[method-assign]


def _attach_methods() -> None:
    for name in _METHODS:
        setattr(Tensor, name, getattr(ops, name))
    for alias, name in _ALIASES.items():
        setattr(Tensor, alias, getattr(Tensor, name))
    for name in _INPLACE:
        if name != "clamp":
            setattr(Tensor, f"{name}_", inplace.functional_inplace(name))
    for name in ("uniform_", "normal_", "bernoulli_", "random_", "exponential_"):
        setattr(Tensor, name, getattr(random, name))
    for written in (inplace.copy_, inplace.fill_, inplace.zero_):
        setattr(Tensor, written.__name__, written)
    for name in ("float", "double", "half", "bfloat16", "int", "long", "short", "bool", "cfloat", "cdouble"):
        setattr(Tensor, name, _conversion(dtypes.named(_CONVERSIONS.get(name, name))))
    for name in ("char", "byte"):
        setattr(Tensor, name, _conversion(dtypes.named({"char": "int8", "byte": "uint8"}[name])))
    for name, transposed in {"T": _reversed_axes, "mT": _transposed, "H": _hermitian}.items():
        setattr(Tensor, name, property(transposed))


def _reversed_axes(self: Tensor) -> Tensor:
    """A view with the axes in reverse order."""
    return ops.permute(self, tuple(range(self.ndim))[::-1])


def _transposed(self: Tensor) -> Tensor:
    """A view with the last two axes exchanged. Raises: RuntimeError for a 1-d tensor."""
    if self.ndim == 1:
        raise RuntimeError(
            "tensor.mT and tensor.H are only supported on matrices or batches of matrices. Got 1-D tensor; "
            "unsqueeze(0) "
            "makes it a row"
        )
    return ops.transpose(self, -2, -1) if self.ndim else self


def _hermitian(self: Tensor) -> Tensor:
    """The conjugate transpose of a matrix. Raises: RuntimeError for tensors that are not 0-d or 2-d."""
    if self.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor.")
    return ops.adjoint(self)


_CONVERSIONS = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def _conversion(kind: dtypes.dtype) -> Callable[..., Tensor]:
    def method(self: Tensor, memory_format: Any = preserve_format) -> Tensor:
        return copy.to(self, kind, memory_format=memory_format)

    method.__doc__ = f"This tensor as {kind}."
    return method


# --- methods that are not functions of engine.ops ---------------------------------------------------------------------


def method(function: Method) -> Method:
    """Decorator: the function becomes a method of Tensor under its own name."""
    setattr(Tensor, function.__name__, function)
    return function


@method
def round_(self: Tensor, *, decimals: int = 0) -> Tensor:
    """In-place round."""
    if decimals or not (self.is_floating_point() or self.is_complex()):
        return inplace.become(self, ops.round(self, decimals=decimals), "round_")
    return inplace.inplace(OPERATORS["round"], self, ())


@method
def clamp_(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """In-place clamp."""
    return inplace.inplace(selection.CLAMP, self, selection.clamp_bounds(self, min, max))


@method
def where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition holds, `other` elsewhere."""
    return selection.where(condition, self, other)


@method
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """A view in the shape of `other`."""
    return views.view(self, other.shape)


@method
def reshape_as(self: Tensor, other: Tensor) -> Tensor:
    """Reshaped to the shape of `other`."""
    return views.reshape(self, other.shape)


@method
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """In the dtype and on the device of `other`."""
    return copy.to(self, other)


@method
def type(self: Tensor, dtype: Any = None) -> Any:
    """The older name of the dtype ("engine.FloatTensor"), or a conversion to a dtype or to `engine.FloatTensor`."""
    from engine.legacy import TYPES

    if dtype is None:
        return next((f"engine.{name}" for name, each in TYPES.items() if each.dtype is self.dtype), str(self.dtype))
    return copy.to(self, dtype=getattr(dtype, "dtype", dtype))


@method
def cpu(self: Tensor) -> Tensor:
    """In host memory."""
    return self if self.device is CPU else copy.to(self, CPU)


@method
def cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """On a GPU.

    Raises: RuntimeError saying what is missing, where there is none.
    """
    return copy.to(self, "cuda" if device is None else device, non_blocking=non_blocking)


@method
def get_device(self: Tensor) -> int:
    """Index of the GPU, -1 for host memory."""
    return -1 if self.device.index is None else self.device.index


def _like(self: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return {"dtype": self.dtype, "device": self.device} | options


@method
def new_tensor(self: Tensor, data: Any, **options: Any) -> Tensor:
    """A new leaf with the dtype and device of this one."""
    return from_data.tensor(data, **_like(self, options))


@method
def new_empty(self: Tensor, *size: Any, **options: Any) -> Tensor:
    """Uninitialised, with the dtype and device of this one."""
    return factories.empty(*size, **_like(self, options))


@method
def new_empty_strided(self: Tensor, size: Any, stride: Any, **options: Any) -> Tensor:
    """Uninitialised with given strides."""
    return factories.empty_strided(size, stride, **_like(self, options))


@method
def new_zeros(self: Tensor, *size: Any, **options: Any) -> Tensor:
    """Zeros with the dtype and device of this one."""
    return factories.zeros(*size, **_like(self, options))


@method
def new_ones(self: Tensor, *size: Any, **options: Any) -> Tensor:
    """Ones with the dtype and device of this one."""
    return factories.ones(*size, **_like(self, options))


@method
def new_full(self: Tensor, size: Any, fill_value: Any, **options: Any) -> Tensor:
    """A constant with the dtype and device of this one."""
    return factories.full(size, fill_value, **_like(self, options))


@method
def masked_fill_(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    """In-place masked_fill."""
    return inplace.become(self, masked.masked_fill(self, mask, value), "masked_fill_")


@method
def index_add_(self: Tensor, dim: int, index_: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Adds the rows of `source` at `index_` along an axis, repeated indices included.

    Raises: RuntimeError for shapes or dtypes that do not fit and an index out of range.
    """
    moved, places, values = along_axis.rows_at("index_add_", self, dim, index_, source)
    index.index_put_(moved, (0,), (places,), values if alpha == 1 else values * alpha, accumulate=True)
    return self


@method
def index_copy_(self: Tensor, dim: int, index_: Tensor, source: Tensor) -> Tensor:
    """Writes the rows of `source` at `index_` along an axis.

    Raises: RuntimeError or IndexError for shapes, dtypes or an index that do not fit.
    """
    if source.numel() == 1 and source.ndim != self.ndim and 0 in (source.ndim, self.ndim):
        source = source.reshape((1,) * self.ndim)
    moved, places, values = along_axis.rows_at("index_copy_", self, dim, index_, source, IndexError)
    index.index_put_(moved, (0,), (places,), values)
    return self


@method
def index_put_(self: Tensor, indices: tuple[Tensor, ...], values: Tensor, accumulate: bool = False) -> Tensor:
    """Writes (or adds) `values` at index tensors, one an axis."""
    index.put_at(self, tuple(indices), values, accumulate)
    return self


@method
def scatter_(self: Tensor, dim: int, index: Tensor, src: Any = None, **options: Any) -> Tensor:
    """In-place scatter."""
    return inplace.become(self, along_axis.scatter(self, dim, index, src, **options), "scatter_")


@method
def scatter_add_(self: Tensor, dim: int, index_: Tensor, src: Tensor) -> Tensor:
    """In-place scatter_add."""
    return inplace.become(self, along_axis.scatter_add(self, dim, index_, src), "scatter_add_")


@method
def squeeze_(self: Tensor, dim: Any = None) -> Tensor:
    """This very tensor without axes of size 1."""
    return become_view(self, views.squeeze, dim)


@method
def unsqueeze_(self: Tensor, dim: int) -> Tensor:
    """This very tensor with one more axis."""
    return become_view(self, views.unsqueeze, dim)


@method
def transpose_(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """This very tensor with two axes exchanged."""
    return become_view(self, views.transpose, dim0, dim1)


@method
def t_(self: Tensor) -> Tensor:
    """This very matrix transposed."""
    return become_view(self, views.t)


@method
def resize_(self: Tensor, *size: Any, memory_format: Any = preserve_format) -> Tensor:
    """Another size on the same storage, row-major (or in the memory format) from the first element on; elements are
    kept in the order in which they lie in memory. Where the storage is too small, larger memory takes its place, in
    which the further elements are undefined: other tensors on the storage keep the old memory. The same size changes
    nothing.

    Raises: RuntimeError for a tensor that requires grad.
    """
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    shape = factories.shape_from(size, "resize_")
    if shape == self.shape and memory_format is preserve_format:
        return self
    wanted = contiguous_format if memory_format is preserve_format else memory_format
    resized(self, self._spec.like(shape=shape, stride=layout.strides_for_format(shape, wanted)))
    self._bump_version("resize_")
    return self


@method
def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both look at the same memory in the same way."""
    return self.data_ptr() == tensor.data_ptr() and self._spec is tensor._spec


@method
def equal(self: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal."""
    return self.shape == other.shape and bool((self.detach()._array == other.detach()._array).all())


@method
def allclose(self: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether |self - other| <= atol + rtol * |other| everywhere."""
    if self.dtype is not other.dtype:
        raise RuntimeError(f"allclose: {self.dtype} did not match {other.dtype}; convert one with .to()")
    if self.is_cuda or other.is_cuda:
        return bool(ops.isclose(self, other, rtol, atol, equal_nan).all())
    return bool(np.allclose(self.detach()._array, other.detach()._array, rtol, atol, equal_nan))


@method
def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """Sums the axes along which `size` broadcasts to this shape; to one number also where there is nothing to sum."""
    wanted = factories.shape_from(size, "sum_to_size")
    if not wanted:
        return self.sum()
    extra = self.ndim - len(wanted)
    if extra < 0 or any(n not in (1, self.shape[extra + axis]) for axis, n in enumerate(wanted)):
        raise RuntimeError(f"size {list(wanted)} is not expandable to size {list(self.shape)}.")
    axes = [*range(extra), *(extra + axis for axis, n in enumerate(wanted) if n == 1 and self.shape[extra + axis] != 1)]
    return self.sum(axes, True).reshape(wanted) if axes else self


_attach_operators()
_attach_methods()
