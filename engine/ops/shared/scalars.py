"""Python numbers that meet tensors: what becomes of those that the tensor's dtype does not hold.

As in PyTorch there are three answers. A call that stores a number (fill_, full, where, clamp, masked_fill, pow ...)
refuses it with a RuntimeError (`checked`, PyTorch's c10::checked_convert; `assigned`). Arithmetic and comparisons take
an integer modulo two to the power of the tensor's bits (`wrapped`), and a float as the infinity it rounds to. One
that fits no 64 bits is an OverflowError everywhere (`parsed`).
"""

from typing import Any, Final

from engine.rules.dtypes import DTYPES, INTEGER_CATEGORY, dtype, finfo, iinfo, uint8

_LEAST, _BEYOND = -(2**63), 2**64
_INFINITE: Final = (float("inf"), -float("inf"))

# The least and the largest number that may be stored. A negative one wraps around in an unsigned dtype.
_RANGES: Final[dict[dtype, tuple[Any, Any]]] = {
    kind: (-iinfo(kind).max if kind is uint8 else iinfo(kind).min, iinfo(kind).max)
    if kind.category == INTEGER_CATEGORY
    else (finfo(kind).min, finfo(kind).max)
    for kind in DTYPES.values()
    if kind.category >= INTEGER_CATEGORY
}


def parsed(name: str, value: Any) -> Any:
    """A Python number that an operator can take.

    Raises: OverflowError for an integer below -2**63 or from 2**64 on.
    """
    if type(value) is int and not _LEAST <= value < _BEYOND:
        raise OverflowError(
            f"{name}: int too big to convert: expected -2**63 <= number < 2**64, got {value}; a float holds such "
            f"numbers"
        )
    return value


def checked(name: str, value: Any, kind: dtype) -> Any:
    """A Python number as NumPy can store it in an array of `kind`; infinities and NaN are floating point numbers.

    Raises: RuntimeError where the dtype does not hold it, OverflowError as `parsed`.
    """
    if kind.is_complex or kind.category < INTEGER_CATEGORY:
        fits = True
    elif isinstance(value, complex):
        return checked(name, value.real, kind) if not value.imag else _refuse(name, value, kind)
    else:
        low, high = _RANGES[kind]
        # NaN is within no range
        fits = low <= parsed(name, value) <= high
        if not fits and kind.is_floating_point:
            fits = value != value or value in _INFINITE
    if not fits:
        return _refuse(name, value, kind)
    return int(value) % 256 if kind is uint8 and value < 0 else value


def _refuse(name: str, value: Any, kind: dtype) -> Any:
    low, high = _RANGES[kind]
    raise RuntimeError(
        f"{name}: value cannot be converted to type {kind} without overflow: expected a real number from {low} to "
        f"{high}, got {value}; convert the tensor with .to() first"
    )


def assigned(name: str, value: Any, kind: dtype) -> Any:
    """The same for `where` and `x[...] = number`, where PyTorch lets 16-bit floats take any number and be infinite."""
    return value if kind.is_floating_point and kind.itemsize == 2 else checked(name, value, kind)


def wrapped(value: int, kind: dtype) -> int:
    """A Python integer modulo two to the power of the bits of an integer dtype."""
    bits = kind.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind.is_signed and value >> (bits - 1) else value


def bounds(kind: dtype) -> tuple[int, int]:
    """The least and the largest number of an integer dtype."""
    limits = iinfo(kind)
    return limits.min, limits.max
