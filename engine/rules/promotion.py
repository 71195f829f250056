"""Result dtypes: which dtype comes out when operands of several dtypes meet.

Source: PyTorch's c10/core/ScalarType (promote_types), ATen/native/TypeProperties.cpp (result_type) and the notes of
docs/source/tensor_attributes.rst on type promotion.
"""

from functools import cache, lru_cache
from typing import Final

from engine.rules.dtypes import (
    BOOL_CATEGORY,
    FLOATING_CATEGORY,
    INTEGER_CATEGORY,
    bool_,
    dtype,
    float32,
    get_default_dtype,
    int16,
    int64,
)

DIMENSIONED: Final = 2
"""Rank category of a tensor with at least one dimension."""
ZERO_DIM: Final = 1
"""Rank category of a tensor without dimensions."""
NUMBER: Final = 0
"""Rank category of a Python number; its dtype is `number_dtype(type(number))`."""


@cache  # at most 13 x 13 pairs
def promote_types(type1: dtype, type2: dtype) -> dtype:
    """The smallest dtype of the higher category that holds the values of both (int to float may round, as in PyTorch).

    uint8 with int8 gives int16, float16 with bfloat16 float32, int64 with float16 float16. Raises TypeError when an
    argument is not a dtype.
    """
    for given in (type1, type2):
        if not isinstance(given, dtype):
            raise TypeError(f"promote_types() expected two engine.rules.dtypes, got {given!r}")
    lower, higher = sorted((type1, type2), key=lambda each: (each.category, each.itemsize))
    if lower is higher or (lower.category < FLOATING_CATEGORY and lower.category < higher.category):
        return higher
    if higher.is_complex:
        return promote_types(lower.to_real(), higher.to_real()).to_complex()
    if higher.category == INTEGER_CATEGORY:
        # The only unsigned type is uint8: the sole signed type too narrow for it is int8, and int8 sorts with it.
        return int16 if lower.itemsize == higher.itemsize else higher
    if lower.itemsize == higher.itemsize:
        return float32  # float16 and bfloat16 do not hold each other
    return higher


def number_dtype(number_type: type) -> dtype:
    """The dtype a Python number of `number_type` takes part in promotion with.

    bool: bool, int: int64, float: the default dtype, complex: its complex counterpart. Raises TypeError for any other.
    """
    if number_type is float:
        return get_default_dtype()
    if number_type is int:
        return int64
    if number_type is bool:
        return bool_
    if number_type is complex:
        return get_default_dtype().to_complex()
    for base in (bool, int, float, complex):  # subclasses: numpy.float64 is a float, enum.IntEnum an int
        if issubclass(number_type, base):
            return number_dtype(base)
    raise TypeError(f"expected a tensor or a Python bool, int, float or complex, got {number_type.__name__}")


def _combine(higher: dtype | None, lower: dtype | None) -> dtype | None:
    """The dtype of two rank categories; the higher one decides unless the lower has a higher dtype category."""
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher.category == BOOL_CATEGORY or lower.category >= FLOATING_CATEGORY:
        return promote_types(higher, lower)
    return higher


@lru_cache(maxsize=4096)
def result_dtype(operands: tuple[tuple[dtype, int], ...]) -> dtype:
    """The common dtype of `operands`, each a (dtype, rank category): DIMENSIONED, ZERO_DIM or NUMBER.

    Promotes within each rank category and lets a lower one decide only if its dtype is of a higher category (bool <
    integer < floating point < complex). Raises ValueError without operands.
    """
    common: list[dtype | None] = [None, None, None]
    for operand_dtype, rank_category in operands:
        so_far = common[rank_category]
        common[rank_category] = operand_dtype if so_far is None else promote_types(so_far, operand_dtype)
    result = _combine(common[DIMENSIONED], _combine(common[ZERO_DIM], common[NUMBER]))
    if result is None:
        raise ValueError("result_dtype() needs at least one operand")
    return result


def can_cast(from_: dtype, to: dtype) -> bool:
    """Whether a result of dtype `from_` may be stored in a tensor of dtype `to`.

    Down in category never: complex to real, floating point to integer, non-bool to bool. Within one always, narrowing
    included.
    """
    return from_.category <= to.category
