"""Special functions that neither NumPy nor CuPy has: erf and its relatives, the logarithm of the gamma function and its
derivatives.

Written with array functions only, so that they run on both; float32 and float64 are computed in float64, to its last
digits. Sources: W. J. Cody, "Rational Chebyshev approximation for the error function" (1969); P. Giles, "Approximating
the erfinv function" (2010); C. Lanczos, "A precision approximation of the gamma function" (1964), coefficients of P.
Godfrey; Abramowitz and Stegun 6.3.18, 6.4.12.
"""

import math
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.namespaces import OPERATORS
from engine.calls.operator import define
from engine.memory.backend import special_functions
from engine.ops.pointwise.row import FUNCTIONS, computed_in_single_precision, floating
from engine.ops.shared.operands import floating_dtype, require_floating
from engine.rules import iterator
from engine.rules.spec import Spec
from engine.tensor import Tensor

# Cody's coefficients: erf(x) = x P(x²)/Q(x²) below 0.46875, erfc(x) = exp(-x²) P(x)/Q(x) to 4, and an asymptotic form
# beyond.
_NEAR_P = (
    1.85777706184603153e-1,
    3.16112374387056560,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_NEAR_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_P = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594,
    6.61191906371416295e1,
    2.98635138197400131e2,
    8.81952221241769090e2,
    1.71204761263407058e3,
    2.05107837782607147e3,
    1.23033935479799725e3,
)
_MIDDLE_Q = (
    1.0,
    1.57449261107098347e1,
    1.17693950891312499e2,
    5.37181101862009858e2,
    1.62138957456669019e3,
    3.29079923573345963e3,
    4.36261909014324716e3,
    3.43936767414372164e3,
    1.23033935480374942e3,
)
_FAR_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_FAR_Q = (
    1.0,
    2.56852019228982242,
    1.87295284992346047,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)
_INVERSE_SQRT_PI = 0.5641895835477563
_SLOPE = 2 * _INVERSE_SQRT_PI


def _polynomial(coefficients: tuple[float, ...], x: Any) -> Any:
    value = x * 0 + coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _erfc_of_magnitude(xp: ModuleType, size: Any) -> Any:
    """erfc of numbers >= 0.46875 (others give something meaningless)."""
    middle = _polynomial(_MIDDLE_P, size) / _polynomial(_MIDDLE_Q, size)
    far = xp.maximum(size, 1.0)
    inverse_square = 1 / (far * far)
    far = (
        _INVERSE_SQRT_PI - inverse_square * _polynomial(_FAR_P, inverse_square) / _polynomial(_FAR_Q, inverse_square)
    ) / far
    # exp(-x²) from a rounded square and the rest: x² itself loses digits that the exponential makes large.
    rounded = xp.trunc(xp.minimum(size, 30.0) * 16) / 16
    rest = (xp.minimum(size, 30.0) - rounded) * (xp.minimum(size, 30.0) + rounded)
    return xp.exp(-rounded * rounded) * xp.exp(-rest) * xp.where(size <= 4, middle, far)


def in_double(xp: ModuleType, function: Any, input: Any) -> Any:
    """`function` of an array, computed in float64."""
    wide = xp.asarray(input).astype("f8")
    return xp.asarray(function(xp, wide)).astype(input.dtype)


def erf_array(xp: ModuleType, input: Any) -> Any:
    """erf of a raw array."""
    return in_double(xp, _erf, input) if xp is np else special_functions().erf(input)


def _erf(xp: ModuleType, x: Any) -> Any:
    size = xp.abs(x)
    square = xp.minimum(size, 0.5) ** 2
    near = x * _polynomial(_NEAR_P, square) / _polynomial(_NEAR_Q, square)
    return xp.where(size <= 0.46875, near, xp.sign(x) * (1 - _erfc_of_magnitude(xp, size)))


def _erfc(xp: ModuleType, x: Any) -> Any:
    size = xp.abs(x)
    tail = _erfc_of_magnitude(xp, size)
    return xp.where(size <= 0.46875, 1 - _erf(xp, x), xp.where(x > 0, tail, 2 - tail))


def _erfinv(xp: ModuleType, y: Any) -> Any:
    w = -xp.log((1 - y) * (1 + y))
    low, high = w - 2.5, xp.sqrt(xp.maximum(w, 5.0)) - 3
    small = _polynomial(
        (
            2.81022636e-08,
            3.43273939e-07,
            -3.5233877e-06,
            -4.39150654e-06,
            0.00021858087,
            -0.00125372503,
            -0.00417768164,
            0.246640727,
            1.50140941,
        ),
        low,
    )
    large = _polynomial(
        (
            -0.000200214257,
            0.000100950558,
            0.00134934322,
            -0.00367342844,
            0.00573950773,
            -0.0076224613,
            0.00943887047,
            1.00167406,
            2.83297682,
        ),
        high,
    )
    x = xp.where(w < 5, small, large) * y
    for _ in range(
        2
    ):  # Newton from six digits to all; near ±1 the residual is taken from erfc, which keeps its digits there
        residual = xp.where(xp.abs(y) < 0.5, _erf(xp, x) - y, xp.sign(y) * ((1 - xp.abs(y)) - _erfc(xp, xp.abs(x))))
        x = x - residual / (_SLOPE * xp.exp(-x * x))
    return xp.where(xp.abs(y) == 1, y * math.inf, x)


def erfc_array(xp: ModuleType, x: Any) -> Any:
    """erfc of a raw float64 array."""
    return _erfc(xp, x)


_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)


def _lgamma(xp: ModuleType, x: Any) -> Any:
    reflected = x < 0.5
    z = xp.where(reflected, 1 - x, x) - 1
    series = _LANCZOS[0] + sum(coefficient / (z + i) for i, coefficient in enumerate(_LANCZOS[1:], 1))
    t = z + 7.5
    value = 0.9189385332046727 + (z + 0.5) * xp.log(t) - t + xp.log(series)
    value = xp.where(xp.isinf(x), math.inf, xp.where((x == 1) | (x == 2), 0.0, value))
    turned = math.log(math.pi) - xp.log(xp.abs(xp.sin(math.pi * (x - xp.floor(x))))) - value
    turned = xp.where(xp.abs(x) < 1e-17, -xp.log(xp.abs(x)), turned)
    return xp.where(reflected & ~xp.isinf(x), xp.where(x == xp.floor(x), math.inf, turned), value)


def lgamma_array(xp: ModuleType, x: Any) -> Any:
    """log |Gamma| of a raw float64 array."""
    return _lgamma(xp, x)


def _digamma(xp: ModuleType, x: Any) -> Any:
    reflected = x < 0
    z = xp.where(reflected, 1 - x, x)
    shift = 0.0
    for _ in range(10):  # up to where the asymptotic series is exact
        small = z < 10
        shift = shift - xp.where(small, 1 / z, 0)
        z = z + small
    inverse = 1 / (z * z)
    series = _polynomial((1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12), inverse) * inverse
    value = shift + xp.log(z) - 0.5 / z - series
    value = value - xp.where(reflected, math.pi / xp.tan(math.pi * xp.where(reflected, x - xp.floor(x), 0.5)), 0)
    # PyTorch gives minus infinity at 0 and NaN at the other poles.
    return xp.where(
        x == 0,
        -math.copysign(1, 1) * math.inf * xp.where(xp.signbit(x), -1, 1),
        xp.where((x < 0) & (x == xp.floor(x)), math.nan, value),
    )


def _trigamma(xp: ModuleType, x: Any) -> Any:
    reflected = x < 0.5
    z = xp.where(reflected, 1 - x, x)
    shift = 0.0
    for _ in range(10):
        small = z < 10
        shift = shift + xp.where(small, 1 / (z * z), 0)
        z = z + small
    inverse = 1 / (z * z)
    series = _polynomial((7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6), inverse) * inverse
    value = shift + (1 + series) / z + 0.5 * inverse
    return xp.where(reflected, (math.pi / xp.sin(math.pi * xp.where(reflected, x, 0.5))) ** 2 - value, value)


def _zeta(xp: ModuleType, order: int, x: Any) -> Any:
    """Hurwitz's zeta function for an integer order > 1: the sum of (x + k) ** -order; tail by Euler-Maclaurin."""
    total, z = 0.0, x
    while bool((z < 10).any()):
        small = z < 10
        total = total + xp.where(small, z ** float(-order), 0)
        z = z + small
    term = z ** float(-order)
    total = total + term * z / (order - 1) + term / 2
    factor, slope = 1.0, term / z
    for k, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510), 1):
        factor = factor * (order + 2 * k - 2) * ((order + 2 * k - 3) if k > 1 else 1) / ((2 * k) * (2 * k - 1))
        total = total + bernoulli * factor * slope
        slope = slope / (z * z)
    return total


def _polygamma(xp: ModuleType, x: Any, n: int) -> Any:
    if n == 1:
        return _trigamma(xp, x)
    finite = xp.where(xp.isfinite(x), x, 1.0)
    zeta = _zeta(xp, n + 1, finite) if xp is np else special_functions().zeta(n + 1.0, finite)
    value = (-1) ** (n + 1) * math.factorial(n) * zeta
    return xp.where(xp.isfinite(x), value, xp.where(x > 0, 0.0, math.nan))


def _polygamma_rule(input: Spec, n: int) -> Spec:
    require_floating("polygamma", input)
    return input.like(stride=iterator.plan((input.operand,)).stride)


POLYGAMMA = define(
    "polygamma",
    rule=_polygamma_rule,
    forward=lambda xp, input, n: in_double(xp, lambda xp, x: _polygamma(xp, x, n), input),
    backward=(lambda g, nd, input, n: g * nd.polygamma(n + 1, input),),
    attributes="n",
)


def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of digamma. Raises RuntimeError for a negative order."""
    if n < 0:
        raise RuntimeError(f"polygamma(n, x) does not support negative n, got {n}")
    if n == 0:
        return FUNCTIONS["digamma"](input)
    return apply(POLYGAMMA, (input if input.dtype.category >= 2 else input.to(floating_dtype(input._spec)),), (n,))


def _digamma_slope(g: Any, nd: Any, input: Any) -> Any:
    return g * nd.polygamma(1, input)


def _define(name: str, function: Any, rule: Any) -> None:
    floating(name, lambda xp, input: in_double(xp, function, input), (rule,), refused="complex")


def special_kernel(name: str, function: str) -> None:
    """On a GPU an operator is one function of cupyx.scipy.special, in single or double precision."""

    def run(xp: ModuleType, *operands: Any) -> Any:
        return computed_in_single_precision(getattr(special_functions(), function), *operands)

    OPERATORS[name].kernel("cuda")(run)


_define("erf", _erf, lambda g, nd, input: g * nd.exp(-input * input) * _SLOPE)
_define("erfc", _erfc, lambda g, nd, input: -g * nd.exp(-input * input) * _SLOPE)
_define("erfinv", _erfinv, lambda g, nd, out: g * nd.exp(out * out) / _SLOPE)
_define("lgamma", _lgamma, lambda g, nd, input: g * nd.digamma(input))
_define("digamma", _digamma, _digamma_slope)
for _name, _function in {"erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "lgamma": "gammaln"}.items():
    special_kernel(_name, _function)
