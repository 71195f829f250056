"""The element types of tensors: `dtype` instances, their NumPy counterparts, the default dtype, `finfo` and `iinfo`.

Three instances carry a trailing underscore here (`bool_`, `int_`, `float_`) because their public names, `engine.bool`,
`engine.int` and `engine.float`, would hide Python's own types in this file; `repr` shows the public name.
"""

from typing import Final

import ml_dtypes
import numpy as np

BOOL_CATEGORY: Final = 0
INTEGER_CATEGORY: Final = 1
FLOATING_CATEGORY: Final = 2
COMPLEX_CATEGORY: Final = 3

_CATEGORY_OF_KIND = {
    "b": BOOL_CATEGORY,
    "i": INTEGER_CATEGORY,
    "u": INTEGER_CATEGORY,
    "f": FLOATING_CATEGORY,
    "c": COMPLEX_CATEGORY,
}


class dtype:
    """The type of a tensor's elements; compared by identity, and copied or unpickled to the very same instance.

    Attributes:
        name: `"float32"`; `repr` and `str` give `"engine.float32"`.
        numpy: the `numpy.dtype` of the arrays that hold such elements.
        itemsize: bytes of one element.
        category: 0 bool, 1 integer, 2 floating point, 3 complex; promotion never goes down in it.
        is_floating_point, is_complex, is_signed: as on `torch.dtype` (complex types are signed, bool and uint8 not).
    """

    __slots__ = ("category", "is_complex", "is_floating_point", "is_signed", "itemsize", "name", "numpy")

    name: str
    numpy: np.dtype
    itemsize: int
    category: int
    is_floating_point: bool
    is_complex: bool
    is_signed: bool

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError(f"a dtype cannot be created, use one of {known_names()}")

    def to_real(self) -> "dtype":
        """The type of the real part: complex64 gives float32; a real type gives itself."""
        return _REAL_OF.get(self, self)

    def to_complex(self) -> "dtype":
        """The complex type whose parts hold this one: float32 gives complex64, float16 complex32.

        Raises RuntimeError for bool and integers, as PyTorch does.
        """
        if self.category < FLOATING_CATEGORY:
            raise RuntimeError(f"{self} has no complex counterpart; expected a floating point or complex dtype")
        return _COMPLEX_OF.get(self, self)

    def __repr__(self) -> str:
        return f"engine.{self.name}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return named, (self.name,)


def _define(name: str, numpy_dtype: np.dtype, category: int) -> dtype:
    made = dtype.__new__(dtype)
    made.name = name
    made.numpy = numpy_dtype
    made.itemsize = numpy_dtype.itemsize
    made.category = category
    made.is_floating_point = category == FLOATING_CATEGORY
    made.is_complex = category == COMPLEX_CATEGORY
    made.is_signed = category >= FLOATING_CATEGORY or numpy_dtype.kind == "i"
    return made


def _of_native(name: str) -> dtype:
    numpy_dtype = np.dtype(name)
    return _define(name, numpy_dtype, _CATEGORY_OF_KIND[numpy_dtype.kind])


bool_: Final = _of_native("bool")
uint8: Final = _of_native("uint8")
int8: Final = _of_native("int8")
int16: Final = _of_native("int16")
int32: Final = _of_native("int32")
int64: Final = _of_native("int64")
float16: Final = _of_native("float16")
bfloat16: Final = _define("bfloat16", np.dtype(ml_dtypes.bfloat16), FLOATING_CATEGORY)
float32: Final = _of_native("float32")
float64: Final = _of_native("float64")
complex64: Final = _of_native("complex64")
complex128: Final = _of_native("complex128")

# PyTorch answers complex32 when a float16 tensor meets a complex scalar, so promotion has to be able to name it. No
# array holds it: it is missing from DTYPES, `require_dtype` refuses it, and no NumPy kernel accepts its opaque bytes.
complex32: Final = _define("complex32", np.dtype("V4"), COMPLEX_CATEGORY)

half: Final = float16
float_: Final = float32
double: Final = float64
short: Final = int16
int_: Final = int32
long: Final = int64
cfloat: Final = complex64
cdouble: Final = complex128

DTYPES: Final[dict[str, dtype]] = {
    each.name: each
    for each in (
        bool_,
        uint8,
        int8,
        int16,
        int32,
        int64,
        float16,
        bfloat16,
        float32,
        float64,
        complex64,
        complex128,
    )
}
"""Every dtype a tensor can have, by name, in ascending order of category."""

_OF_NUMPY = {each.numpy: each for each in DTYPES.values()}
_OF_PYTHON: dict[type, dtype] = {bool: bool_, int: int64, float: float64, complex: complex128}
_REAL_OF = {complex32: float16, complex64: float32, complex128: float64}
# bfloat16 has no complex type of its own width.
_COMPLEX_OF = {float16: complex32, bfloat16: complex64, float32: complex64, float64: complex128}


def known_names() -> str:
    """The names of all dtypes a tensor can have, for error messages."""
    return ", ".join(f"engine.{name}" for name in DTYPES)


def named(name: str) -> dtype:
    """The dtype called `name` (`"float32"`). Raises TypeError listing the known ones."""
    if name == complex32.name:
        return complex32
    try:
        return DTYPES[name]
    except KeyError:
        raise TypeError(f"unknown dtype {name!r}: expected one of {known_names()}") from None


def require_dtype(value: object) -> dtype:
    """`value` itself if a tensor can have it as its dtype; of the Python types bool, int, float and complex the widest
    of their kind, as in PyTorch.

    Raises TypeError for anything else, the NumPy types that PyTorch refuses here included.
    """
    if isinstance(value, dtype):
        if value is complex32:
            raise TypeError("no tensor can have dtype engine.complex32, use engine.complex64")
        return value
    if isinstance(value, type) and value in _OF_PYTHON:
        return _OF_PYTHON[value]
    counterpart = _counterpart(value)
    advice = f", use {counterpart}" if counterpart is not None else f": expected one of {known_names()}"
    raise TypeError(f"dtype must be an engine.dtype, got {value!r} of type {type(value).__name__}{advice}")


def _counterpart(value: object) -> dtype | None:
    """What somebody who passed `value` as a dtype probably meant."""
    if isinstance(value, str):
        return DTYPES.get(value)
    if isinstance(value, type | np.dtype):
        try:
            return _OF_NUMPY.get(np.dtype(value))
        except TypeError:
            return None
    return None


def of_numpy(numpy_dtype: np.dtype) -> dtype:
    """The dtype of tensors over arrays of `numpy_dtype`.

    Raises TypeError for a type no tensor can hold: uint16, uint32, uint64, swapped byte order, strings, objects.
    """
    try:
        return _OF_NUMPY[numpy_dtype]
    except KeyError:
        shown = numpy_dtype.name if numpy_dtype.isnative else numpy_dtype.str
        raise TypeError(
            f"cannot make a tensor of a NumPy array of type {shown}: expected one of {', '.join(DTYPES)}; "
            "convert it first with array.astype(...)"
        ) from None


_default = float32


def get_default_dtype() -> dtype:
    """The dtype of tensors made from Python floats; float32 unless `set_default_dtype` said otherwise."""
    return _default


def set_default_dtype(d: dtype) -> None:
    """Sets the dtype of tensors made from Python floats, for the whole process.

    Raises TypeError for anything but a floating point dtype.
    """
    global _default
    if not isinstance(d, dtype):
        raise TypeError(f"invalid dtype object: only floating-point types are supported as the default type, got {d!r}")
    if not d.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, got {d}")
    _default = d


class finfo:
    """Limits of a floating point dtype (of the parts of a complex one); the default dtype when none is named.

    Attributes: `bits`, `eps`, `max`, `min`, `tiny`, `smallest_normal`, `resolution` (Python floats) and `dtype` (its
    name), the values PyTorch reports. Raises TypeError for other types.
    """

    __slots__ = ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny")

    def __init__(self, type: dtype | None = None) -> None:
        described = get_default_dtype() if type is None else type
        if not isinstance(described, dtype):
            raise TypeError(f"finfo(): argument 'type' must be an engine.dtype, got {described!r}")
        if described.category < FLOATING_CATEGORY:
            raise TypeError(f"finfo() requires a floating point dtype, got {described}; use engine.iinfo for integers")
        part = described.to_real()
        limits = ml_dtypes.finfo(part.numpy)  # numpy.finfo knows no bfloat16
        self.bits = part.itemsize * 8
        self.eps = float(limits.eps)
        self.max = float(limits.max)
        self.min = float(limits.min)
        self.smallest_normal = self.tiny = float(limits.smallest_normal)
        self.resolution = float(f"1e-{limits.precision}")
        self.dtype = part.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, finfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((finfo, self.dtype))

    def __repr__(self) -> str:
        fields = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        return f"finfo({', '.join(f'{field}={getattr(self, field):.6g}' for field in fields)}, dtype={self.dtype})"


class iinfo:
    """Limits of an integer dtype: `bits`, `max`, `min` (Python ints) and `dtype` (its name).

    Raises TypeError for other types, bool included.
    """

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type: dtype) -> None:
        if not isinstance(type, dtype):
            raise TypeError(f"iinfo(): argument 'type' must be an engine.dtype, got {type!r}")
        if type is bool_:
            raise TypeError("engine.bool is not supported by iinfo()")
        if type.category != INTEGER_CATEGORY:
            raise TypeError(f"iinfo() requires an integer dtype, got {type}; use engine.finfo for floating point")
        self.bits = type.itemsize * 8
        self.max = 2 ** (self.bits - type.is_signed) - 1
        self.min = -(2 ** (self.bits - 1)) if type.is_signed else 0
        self.dtype = type.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, iinfo) and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((iinfo, self.dtype))

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
