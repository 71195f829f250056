"""Division that leaves whole numbers or remainders: rows as those of `engine.ops.pointwise.rows`.

On GPUs floating point numbers follow NumPy's rules, which are PyTorch's: the remainder is C's, exact, and the quotient
is what it leaves. CuPy's own functions floor the rounded quotient, which gives inf for inf // 2, NaN for 1 % inf, and
the next whole number where the quotient rounds up to it.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from engine.calls.namespaces import OPERATORS
from engine.ops.pointwise.row import Facts, computed_in_single_precision, pointwise
from engine.ops.shared.operands import undifferentiable, zeros_like


def _truncated(xp: ModuleType, input: Any, other: Any) -> Any:
    """The quotient without its fraction, computed with integers where it is one of integers."""
    quotient = xp.true_divide(input, other)
    if getattr(input, "dtype", quotient.dtype).kind not in "iu" or getattr(other, "dtype", quotient.dtype).kind == "f":
        return xp.trunc(quotient)
    floor, rest = xp.divmod(input, other)
    return floor + ((rest != 0) & (floor < 0))


def _floored(xp: ModuleType, input: Any, other: Any) -> Any:
    """The largest whole number that is not above the quotient."""
    if _are_integers(xp, input, other):
        return xp.floor_divide(input, other)
    rest, quotient = xp.fmod(input, other), xp.true_divide(input, other)
    whole = xp.rint(xp.true_divide(input - rest, other)) - _is_across(rest, other)
    return xp.where(xp.equal(other, 0), quotient, xp.where(whole == 0, xp.copysign(whole, quotient), whole))


def _rest(xp: ModuleType, input: Any, other: Any) -> Any:
    """The remainder with the sign of the divisor."""
    if _are_integers(xp, input, other):
        return xp.remainder(input, other)
    rest = xp.fmod(input, other)
    rest = xp.where(_is_across(rest, other), rest + other, rest)
    return xp.where(rest == 0, xp.copysign(rest, other), rest)


def _in_single_precision(function: Callable[..., Any], xp: ModuleType, *operands: Any) -> Any:
    return computed_in_single_precision(partial(function, xp), *operands)


def _are_integers(xp: ModuleType, input: Any, other: Any) -> bool:
    return bool(xp.result_type(input, other).kind in "biu")


def _is_across(rest: Any, other: Any) -> Any:
    """Whether C's remainder and the divisor have different signs."""
    return (rest != 0) & ((rest < 0) != (other < 0))


pointwise(
    "floor_divide",
    "floor_divide",
    (undifferentiable("floor_divide"), undifferentiable("floor_divide")),
    refused="bool complex",
    facts=Facts(divides=True),
)
pointwise("div_floor", "floor_divide", (zeros_like, zeros_like), refused="bool complex", facts=Facts(divides=True))
pointwise(
    "div_trunc",
    _truncated,
    (zeros_like, zeros_like),
    refused="bool complex",
    facts=Facts(divides=True),
)
pointwise(
    "remainder",
    "remainder",
    (lambda g: g, lambda g, nd, input, other: -g * nd.div_floor(input, other)),
    refused="bool complex",
    facts=Facts(divides=True),
)
pointwise(
    "fmod",
    "fmod",
    (lambda g: g, lambda g, nd, input, other: -g * nd.trunc(input / other)),
    refused="bool complex",
    facts=Facts(divides=True),
)

for _name, _on_gpu in (("floor_divide", _floored), ("div_floor", _floored), ("remainder", _rest)):
    OPERATORS[_name].kernel("cuda")(partial(_in_single_precision, _on_gpu))
