"""Elementwise operators: one row each, with its derivative. `engine.ops.pointwise.row` says what a row is and makes an
operator of it; derivatives are from calculus.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.listening import heard
from engine.ops.activation import compiled
from engine.ops.pointwise.repeating import over, times
from engine.ops.pointwise.row import FUNCTIONS as FUNCTIONS
from engine.ops.pointwise.row import Facts, floating, pointwise
from engine.ops.shared.operands import (
    conjugate,
    kept,
    scaled,
    zeros_like,
)
from engine.ops.shared.scalars import checked
from engine.rules.dtypes import of_numpy
from engine.tensor import Tensor

# --- arithmetic -------------------------------------------------------------------------------------------------------

pointwise("add", "add", (lambda g: g, lambda g: g))
pointwise(
    "sub", "subtract", (lambda g: g, lambda g: -g), refused="bool", facts=Facts(plain_errors=True, each_bool=True)
)
pointwise("mul", "multiply", (lambda g, other: times(g, other), lambda g, input: times(g, input)))
pointwise(
    "div",
    "true_divide",
    # the quotient may be written into; the sign is the divisor's, which is often the smaller one
    (lambda g, other: over(g, other), lambda g, input, other: g * over(over(input, other), -other)),
    flavour="floating",
)


def _sign(xp: ModuleType, input: Any) -> Any:
    """-1, 0 or 1, and 0 for NaN, as PyTorch has it; of complex numbers z / |z|."""
    kind = input.dtype.kind
    if kind == "b":
        return xp.copy(input)
    if kind == "c":
        size = xp.abs(input)
        return xp.where(size == 0, 0, input / xp.where(size == 0, 1, size)).astype(input.dtype)
    if kind in "iu":
        return xp.sign(input)
    # 1024x512 random float32: 0.11 ms, numpy.sign 0.25.
    return ((input > 0).view(xp.int8) - (input < 0).view(xp.int8)).astype(input.dtype)


pointwise("neg", "negative", (lambda g: -g,), refused="bool", facts=Facts(plain_errors=True))
pointwise("positive", "positive", (lambda g: g,), refused="bool", facts=Facts(plain_errors=True))
pointwise(
    "abs",
    "absolute",
    (lambda g, nd, input: g * nd.sgn(input),),
    refused="bool",
    analytic=False,
    facts=Facts(real=True, like_complex=True),
)
pointwise("sign", _sign, (zeros_like,), refused="complex")
pointwise("sgn", _sign, (lambda g, nd, input, out: _sgn_slope(g, nd, input, out),), analytic=False)
pointwise("square", "square", (lambda g, input: g * (2 * input),), refused="bool")


def _sgn_slope(g: Any, nd: Any, input: Any, out: Any) -> Any:
    """Of z / |z|: what of the gradient is at right angles to z, over |z|."""
    if not nd.is_complex(out):
        return zeros_like(g, nd)
    size = nd.abs(input)
    slope = (g - nd.real(g * conjugate(out, nd)) * out) / nd.where(size == 0, 1, size)
    return nd.where(size == 0, 0, slope)


def _power(xp: ModuleType, input: Any, other: Any) -> Any:
    if isinstance(other, int | float) and not isinstance(other, bool) and hasattr(input, "dtype"):
        if input.dtype.kind in "iu" and isinstance(other, int) and other < 0:
            raise RuntimeError(
                f"pow: Integers to negative integer powers are not allowed: got exponent {other}; convert the base "
                "with .float()"
            )
        if isinstance(other, int) or input.dtype.kind not in "iub":
            other = checked("pow", other, of_numpy(input.dtype))
        special = _POWERS.get(other)
        if special is not None and input.dtype.kind in "fcV":
            return special(xp, input)
    elif hasattr(other, "dtype") and other.dtype.kind == "i" and getattr(input, "dtype", other.dtype).kind in "iu":
        return _integer_power(xp, input, other)
    return xp.power(input, other)


# PyTorch computes these so. 1024x512 float32: numpy.power to 3 takes 23 ms, x * x * x 0.09.
_POWERS: dict[Any, Callable[..., Any]] = {
    0.5: lambda xp, x: xp.sqrt(x),
    -0.5: lambda xp, x: 1 / xp.sqrt(x),
    1: lambda xp, x: xp.positive(x),
    2: lambda xp, x: xp.square(x),
    3: lambda xp, x: x * x * x,
    -1: lambda xp, x: xp.reciprocal(x),
    -2: lambda xp, x: xp.reciprocal(x * x),
}


def _integer_power(xp: ModuleType, input: Any, other: Any) -> Any:
    """Powers of integers; those to a negative one are the integer part of the quotient, as in PyTorch."""
    negative = other < 0
    if xp is np and not negative.any():
        return xp.power(input, other)
    result = xp.power(input, xp.where(negative, 0, other))
    quotient = xp.where(input == 1, 1, xp.where(input == -1, 1 - 2 * (other & 1), 0)).astype(result.dtype)
    return xp.where(negative, quotient, result)


def _power_slope(g: Any, nd: Any, input: Any, other: Any) -> Any:
    """other * input ** (other - 1), and 0 for an exponent of 0 whatever the base."""
    if not hasattr(other, "shape"):
        return g * (other * nd.pow(input, other - 1)) if other else zeros_like(g, nd)
    slope = other * nd.pow(input, nd.where(other == 0, 1, other - 1))
    return nd.where(other == 0, 0, g * slope)


def _exponent_slope(g: Any, nd: Any, input: Any, other: Any, out: Any) -> Any:
    """input ** other * log(input), and 0 at a base of 0, unless the exponent is negative."""
    if not hasattr(input, "shape"):
        kind = complex if isinstance(input, complex) or _is_complex(other) else float
        base = np.log(np.asarray(input, kind)).item() if input else -np.inf
        return nd.where(_real_part(nd, other) >= 0, 0, g * (out * base)) if not input else g * (out * base)
    flat = (input == 0) & (_real_part(nd, other) >= 0)
    base = nd.where(flat, 1, input)
    if nd.records:
        base = base.to(out.dtype)
    elif out.dtype.kind == "c":
        base = base.astype(out.dtype)
    return nd.where(flat, 0, g * (out * nd.log(base)))


def _is_complex(x: Any) -> bool:
    return getattr(x.dtype, "kind", "") == "c" or getattr(x.dtype, "is_complex", False)


def _real_part(nd: Any, x: Any) -> Any:
    return nd.real(x) if hasattr(x, "shape") else x.real


pointwise(
    "pow",
    _power,
    (_power_slope, _exponent_slope),
    refused="bool",
    facts=Facts(exact_numbers=True, row_major_of_number=True),
)
pointwise(
    "maximum",
    "maximum",
    (lambda g, nd, input, other: _share(g, nd, input, other), lambda g, nd, input, other: _share(g, nd, other, input)),
    refused="complex",
    facts=Facts(plain_errors=True),
)
pointwise(
    "minimum",
    "minimum",
    (lambda g, nd, input, other: _share(g, nd, other, input), lambda g, nd, input, other: _share(g, nd, input, other)),
    refused="complex",
    facts=Facts(plain_errors=True),
)
pointwise(
    "fmax",
    "fmax",
    (
        lambda g, nd, input, other: _first_kept(g, nd, input >= other, other),
        lambda g, nd, input, other: _second_kept(g, nd, input >= other, other),
    ),
    refused="complex",
    facts=Facts(plain_errors=True),
)
pointwise(
    "fmin",
    "fmin",
    (
        lambda g, nd, input, other: _first_kept(g, nd, input <= other, other),
        lambda g, nd, input, other: _second_kept(g, nd, input <= other, other),
    ),
    refused="complex",
    facts=Facts(plain_errors=True),
)
pointwise(
    "lerp",
    lambda xp, input, end, weight: _either(
        xp, abs(weight) < 0.5, input + weight * (end - input), end - (end - input) * (1 - weight)
    ),
    (lambda g, weight: g * (1 - weight), lambda g, weight: g * weight, lambda g, input, end: g * (end - input)),
    inputs="input end weight",
    refused="bool integer",
)


def _either(xp: Any, first: Any, near: Any, far: Any) -> Any:
    """`where`, and CuPy's refuses a condition that is one answer for all elements."""
    if isinstance(first, bool):
        return near if first else far
    return xp.where(first, near, far)


def _share(g: Any, nd: Any, winner: Any, loser: Any) -> Any:
    """The gradient of the larger (or smaller) operand: all of it where it wins or one is NaN, half of it at a tie."""
    lost, tie = winner < loser, winner == loser
    if nd.records:
        return nd.where(lost, 0, nd.where(tie, g / 2, g))
    share = kept(g, nd, ~lost)
    return nd.xp.where(tie, share / 2, share) if nd.xp is not np or tie.any() else share


def _first_kept(g: Any, nd: Any, first: Any, other: Any) -> Any:
    """Of fmax and fmin: the first operand's gradient, who also has ties and NaN beside it."""
    return kept(g, nd, first | nd.isnan(other) if hasattr(other, "shape") else first | (other != other))


def _second_kept(g: Any, nd: Any, first: Any, other: Any) -> Any:
    return kept(g, nd, ~(first | nd.isnan(other)) if hasattr(other, "shape") else ~(first | (other != other)))


# --- exponentials, powers, trigonometry -------------------------------------------------------------------------------


def _acosh_root(nd: Any, input: Any) -> Any:
    """√(x² - 1), on the branch of acosh for complex numbers."""
    if _is_complex(input):
        return nd.sqrt(input - 1) * nd.sqrt(input + 1)
    return nd.sqrt(input * input - 1)


floating("exp", "exp", (lambda g, out: g * out,))
floating("exp2", "exp2", (lambda g, out: g * out * 0.6931471805599453,))
floating("expm1", "expm1", (lambda g, out: g * (out + 1),))
floating("log", "log", (lambda g, input: g / input,))
floating("log2", "log2", (lambda g, input: g / (input * 0.6931471805599453),))
floating("log10", "log10", (lambda g, input: g / (input * 2.302585092994046),))
floating("log1p", "log1p", (lambda g, input: g / (input + 1),))
floating("sqrt", "sqrt", (lambda g, out: g / (2 * out),))
floating("rsqrt", lambda xp, input: 1 / xp.sqrt(input), (lambda g, out: -0.5 * g * out * out * out,))


floating("reciprocal", "reciprocal", (lambda g, out: -g * out * out,))
floating("sin", "sin", (lambda g, nd, input: g * nd.cos(input),))
floating("cos", "cos", (lambda g, nd, input: -g * nd.sin(input),))
floating("tan", "tan", (lambda g, out: g * (1 + out * out),))
floating("asin", "arcsin", (lambda g, nd, input: g / nd.sqrt(1 - input * input),))
floating("acos", "arccos", (lambda g, nd, input: -g / nd.sqrt(1 - input * input),))
floating("atan", "arctan", (lambda g, input: g / (1 + input * input),))
floating("sinh", "sinh", (lambda g, nd, input: g * nd.cosh(input),))
floating("cosh", "cosh", (lambda g, nd, input: g * nd.sinh(input),))
floating("tanh", "tanh", (compiled.slope("tanh", lambda g, nd, out: g * (1 - out * out)),))
floating("asinh", "arcsinh", (lambda g, nd, input: g / nd.sqrt(input * input + 1),))
floating("acosh", "arccosh", (lambda g, nd, input: g / _acosh_root(nd, input),))
floating("atanh", "arctanh", (lambda g, input: g / (1 - input * input),))
floating(
    "atan2",
    "arctan2",
    (
        lambda g, nd, input, other: g * other * _inverse_square(nd, input, other),
        lambda g, nd, input, other: -g * input * _inverse_square(nd, input, other),
    ),
    refused="complex",
)


def _inverse_square(nd: Any, input: Any, other: Any) -> Any:
    square = input * input + other * other
    return nd.where(square == 0, 0, 1 / nd.where(square == 0, 1, square))


floating(
    "hypot",
    "hypot",
    (lambda g, input, out: g * input / out, lambda g, other, out: g * other / out),
    refused="bool integer complex",
)
floating(
    "logaddexp",
    "logaddexp",
    (
        lambda g, nd, input, other: g / (1 + nd.exp(other - input)),
        lambda g, nd, input, other: g / (1 + nd.exp(input - other)),
    ),
    refused="bool integer complex",
)
pointwise(
    "relu",
    compiled.forward("relu", lambda xp, input: xp.maximum(input, 0)),
    (compiled.slope("relu", lambda g, nd, out: kept(g, nd, ~(out <= 0))),),
    refused="bool complex",
)
floating(
    "sigmoid",
    compiled.forward("sigmoid", lambda xp, input: _sigmoid(xp, input)),
    (compiled.slope("sigmoid", lambda g, nd, out: g * out * (1 - out)),),
)


def _sigmoid(xp: ModuleType, input: Any) -> Any:
    # Not by tanh, which would save a quarter of the time and give 0 for float32 below -17.
    result = xp.exp(-input)
    return 1 / (1 + result)


# --- rounding, comparison, logic --------------------------------------------------------------------------------------

pointwise("floor", "floor", (zeros_like,), refused="bool complex")
pointwise("ceil", "ceil", (zeros_like,), refused="bool complex")
pointwise("trunc", "trunc", (zeros_like,), refused="bool complex")
pointwise("round", "rint", (zeros_like,), refused="bool complex")
pointwise("frac", lambda xp, input: input - xp.trunc(input), (lambda g: g,), refused="bool integer complex")

_NO = (None, None)
for _name, _function in (("eq", "equal"), ("ne", "not_equal")):
    pointwise(_name, _function, _NO, flavour="comparison")
for _name, _function in (("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")):
    pointwise(_name, _function, _NO, flavour="comparison", refused="complex")
for _name in ("logical_and", "logical_or", "logical_xor"):
    pointwise(_name, _name, _NO, flavour="boolean")
pointwise("logical_not", "logical_not", (None,), flavour="boolean")
for _name in ("isnan", "isinf", "isfinite"):
    pointwise(_name, _name, (None,), flavour="boolean")
# NumPy's own `out=` of another stride is filled wrongly (2.4: half of 400 elements), so that it is not given one.
pointwise("signbit", lambda xp, input: xp.signbit(input), (None,), flavour="boolean", refused="complex")
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    pointwise(_name, _name, _NO, refused="float complex")
pointwise("bitwise_not", "invert", (None,), refused="float complex")
pointwise("bitwise_left_shift", "left_shift", _NO, refused="bool float complex")
pointwise("bitwise_right_shift", "right_shift", _NO, refused="bool float complex")

# --- the names PyTorch gives them, with its extra arguments -----------------------------------------------------------


def add(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """input + alpha * other."""
    return FUNCTIONS["add"](input, other if alpha == 1 else scaled("add", input, other, alpha), out=out)


@heard
def sub(input: Any, other: Any, *, alpha: Any = 1, out: Tensor | None = None) -> Tensor:
    """input - alpha * other."""
    return FUNCTIONS["sub"](input, other if alpha == 1 else scaled("sub", input, other, alpha), out=out)


@heard
def div(input: Any, other: Any, *, rounding_mode: str | None = None, out: Tensor | None = None) -> Tensor:
    """input / other; `rounding_mode` "floor" or "trunc" rounds the quotient (and keeps integers)."""
    if rounding_mode is None:
        return FUNCTIONS["div"](input, other, out=out)
    if rounding_mode in ("floor", "trunc"):
        return FUNCTIONS[f"div_{rounding_mode}"](input, other, out=out)
    raise RuntimeError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'")
