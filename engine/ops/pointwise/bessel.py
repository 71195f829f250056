"""Modified Bessel functions, incomplete gamma functions, Hurwitz' zeta function and functions of the normal
distribution. Array functions only; computed in float64.

Sources: Abramowitz and Stegun 9.6.10 and 9.7.1 (Bessel: power series and asymptotic expansion), 6.5.29 and 6.5.31
(incomplete gamma: power series and continued fraction, the latter by Lentz's method), 23.2.9 (zeta: Euler-Maclaurin).
"""

import math
from types import ModuleType
from typing import Any

from engine.calls.listening import heard
from engine.ops.pointwise.row import FUNCTIONS, floating
from engine.ops.pointwise.selection import where
from engine.ops.pointwise.special_functions import erfc_array, in_double, lgamma_array, special_kernel
from engine.ops.shared.operands import undifferentiable
from engine.rules.dtypes import FLOATING_CATEGORY, get_default_dtype
from engine.tensor import Tensor

# --- Bessel -----------------------------------------------------------------------------------------------------------


def _scaled_bessel(xp: ModuleType, size: Any, order: int) -> Any:
    """exp(-x) I_order(x) for x >= 0."""
    near = xp.minimum(size, 25.0)
    quarter = near * near / 4
    term = xp.ones_like(near) if order == 0 else near / 2
    total = term
    for k in range(1, 70):
        term = term * quarter / (k * (k + order))
        total = total + term
    far = xp.maximum(size, 25.0)
    mu, sign_term, series = 4.0 * order * order, xp.ones_like(far), xp.ones_like(far)
    for k in range(1, 25):
        sign_term = sign_term * -(mu - (2 * k - 1) ** 2) / (8 * k * far)
        series = series + sign_term
    return xp.where(size <= 25, total * xp.exp(-near), series / xp.sqrt(2 * math.pi * far))


def _bessel(order: int, scaled: bool) -> Any:
    def function(xp: ModuleType, x: Any) -> Any:
        size = xp.abs(x)
        value = _scaled_bessel(xp, xp.where(xp.isinf(size), 1e300, size), order)
        value = value if scaled else value * xp.exp(size)
        value = xp.where(xp.isinf(size), 0.0 if scaled else math.inf, value)
        return value * xp.sign(x) if order else value

    return lambda xp, input: in_double(xp, function, input)


def _i1_slope(g: Any, nd: Any, input: Any, out: Any) -> Any:
    """I0 - I1 / x, whose limit at 0 is 1/2."""
    zero = input == 0
    return g * nd.where(zero, 0.5, nd.i0(input) - out / nd.where(zero, 1, input))


def _i1e_slope(g: Any, nd: Any, input: Any, out: Any) -> Any:
    zero = input == 0
    safe = nd.where(zero, 1, input)
    return g * nd.where(zero, 0.5, nd.i0e(input) - out * (nd.sgn(input) + 1 / safe))


floating("i0", _bessel(0, False), (lambda g, nd, input: g * nd.i1(input),), refused="complex")
floating(
    "i0e", _bessel(0, True), (lambda g, nd, input, out: g * (nd.i1e(input) - nd.sgn(input) * out),), refused="complex"
)
floating("i1", _bessel(1, False), (_i1_slope,), refused="complex")
floating("i1e", _bessel(1, True), (_i1e_slope,), refused="complex")

# --- incomplete gamma -------------------------------------------------------------------------------------------------


def _lower_series(xp: ModuleType, a: Any, x: Any) -> Any:
    term = total = 1 / a
    k = 0
    while k < 2000:
        k += 1
        term = term * x / (a + k)
        total = total + term
        if not k % 16 and not bool((xp.abs(term) > xp.abs(total) * 1e-17).any()):
            break
    return total


def _upper_fraction(xp: ModuleType, a: Any, x: Any) -> Any:
    b = x + 1 - a
    c = xp.full_like(b, 1e300)
    d = 1 / b
    value = d
    for k in range(1, 2000):
        numerator = -k * (k - a)
        b = b + 2
        d = 1 / (numerator * d + b)
        c = b + numerator / c
        factor = c * d
        value = value * factor
        if not k % 16 and not bool((xp.abs(factor - 1) > 1e-16).any()):
            break
    return value


def _incomplete_gamma(xp: ModuleType, a: Any, x: Any, upper: bool) -> Any:
    """P(a, x), or Q(a, x) = 1 - P, for a > 0 and x >= 0."""
    a, x = xp.broadcast_arrays(xp.asarray(a, "f8"), xp.asarray(x, "f8"))
    usual = (a > 1e-300) & (x > 0) & xp.isfinite(a) & xp.isfinite(x)
    sa, sx = xp.where(usual, a, 1.0), xp.where(usual, x, 1.0)
    front = xp.exp(sa * xp.log(sx) - sx - lgamma_array(xp, sa))
    low = sx < sa + 1
    p = front * _lower_series(xp, sa, xp.where(low, sx, 1e-3))
    q = front * _upper_fraction(xp, xp.where(low, 1.0, sa), xp.where(low, 3.0, sx))
    value = xp.where(low, 1 - p, q) if upper else xp.where(low, p, 1 - q)
    at_zero, at_infinity = (1.0, 0.0) if upper else (0.0, 1.0)
    value = xp.where(((x == 0) & (a > 0)) | (xp.isinf(a) & xp.isfinite(x)), at_zero, value)
    value = xp.where((x > 0) & (((a >= 0) & (a <= 1e-300)) | (xp.isinf(x) & xp.isfinite(a))), at_infinity, value)
    undefined = (a < 0) | (x < 0) | xp.isnan(a + x) | (xp.isinf(a) & xp.isinf(x)) | ((a == 0) & (x == 0))
    return xp.where(undefined, math.nan, value)


def _igamma(upper: bool) -> Any:
    def forward(xp: ModuleType, input: Any, other: Any) -> Any:
        return _incomplete_gamma(xp, input, other, upper).astype(xp.result_type(input, other))

    return forward


def _density(g: Any, nd: Any, input: Any, other: Any) -> Any:
    """The derivative of P by x: exp(-x) x^(a-1) / Gamma(a)."""
    return g * nd.exp((input - 1) * nd.log(other) - other - nd.lgamma(input))


for _name, _upper in (("igamma", False), ("igammac", True)):
    floating(
        _name,
        _igamma(_upper),
        (
            undifferentiable(f"{_name}: input"),
            (lambda g, nd, input, other: -_density(g, nd, input, other)) if _upper else _density,
        ),
        refused="bool integer complex",
    )

# --- zeta -------------------------------------------------------------------------------------------------------------


def _zeta(xp: ModuleType, input: Any, other: Any) -> Any:
    """The sum of (q + k)^-s, s > 1."""
    kind = xp.result_type(input, other)
    s, q = xp.broadcast_arrays(xp.asarray(input, "f8"), xp.asarray(other, "f8"))
    poles = (q <= 0) & (q == xp.floor(q))
    bad = (s < 1) | ((q <= 0) & ~poles & (s != xp.floor(s))) | xp.isnan(s + q)
    usual = (s > 1) & ~poles & ~bad
    order, z = xp.where(usual, s, 2.0), xp.where(usual, q, 1.0)
    total = xp.zeros_like(z)
    while bool((z < 20).any()):
        small = z < 20
        total = total + xp.where(small, xp.abs(z) ** -order * xp.where((z < 0) & (order % 2 == 1), -1.0, 1.0), 0)
        z = z + small
    term = z**-order
    total = total + term * z / (order - 1) + term / 2
    factor, slope = order / z, term
    ratios = (12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10)
    for k, ratio in enumerate(ratios, 1):
        total = total + factor * slope / ratio
        factor = factor * (order + 2 * k - 1) * (order + 2 * k) / (z * z)
    value = xp.where(usual, total, xp.where((s == 1) | poles, math.inf, math.nan))
    return xp.where(bad, math.nan, value).astype(kind)


floating(
    "zeta",
    _zeta,
    (
        undifferentiable("zeta: input"),
        lambda g, nd, input, other: g * -input * nd.zeta(input + 1, other),
    ),
    refused="complex",
)

for _name, _function in {"igamma": "gammainc", "igammac": "gammaincc", "zeta": "zeta"}.items():
    special_kernel(_name, _function)

# --- normal distribution ----------------------------------------------------------------------------------------------


def _erfcx(xp: ModuleType, x: Any) -> Any:
    """exp(x²) erfc(x), by its continued fraction for large x."""
    near = xp.minimum(x, 25.0)
    direct = xp.exp(near * near) * erfc_array(xp, near)
    far = xp.maximum(x, 25.0)
    square = 1 / (2 * far * far)
    series = 1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square * (1 - 9 * square))))
    return xp.where(x <= 25, direct, series / (far * math.sqrt(math.pi)))


floating(
    "erfcx",
    lambda xp, input: in_double(xp, _erfcx, input),
    (lambda g, input, out: g * (2 * input * out - 2 / math.sqrt(math.pi)),),
    refused="complex",
)


def _log_ndtr(xp: ModuleType, x: Any) -> Any:
    scaled = x * -math.sqrt(0.5)
    tail = xp.log(_erfcx(xp, xp.maximum(scaled, 0)) / 2) - x * x / 2
    return xp.where(x < -1, tail, xp.log1p(-erfc_array(xp, -scaled) / 2))


floating(
    "log_ndtr",
    lambda xp, input: in_double(xp, _log_ndtr, input),
    (lambda g, nd, input: g * math.sqrt(2 / math.pi) / nd.erfcx(input * -math.sqrt(0.5)),),
    refused="complex",
)


@heard
def ndtr(input: Tensor) -> Tensor:
    """The distribution function of the standard normal distribution."""
    return FUNCTIONS["erfc"](input * -math.sqrt(0.5)) * 0.5


@heard
def ndtri(input: Tensor) -> Tensor:
    """The inverse of `ndtr`."""
    if input.dtype.category < FLOATING_CATEGORY:
        input = input.to(get_default_dtype())
    return FUNCTIONS["erfinv"](input * 2 - 1) * math.sqrt(2)


# --- composed ---------------------------------------------------------------------------------------------------------


@heard
def entr(input: Tensor) -> Tensor:
    """-x log x; 0 at 0, minus infinity below."""
    if input.dtype.category < FLOATING_CATEGORY:
        input = input.to(get_default_dtype())
    inside = where(input > 0, input, 1)
    value = where(input > 0, -inside * inside.log(), where(input == 0, input * 0, -math.inf))
    return where(input == input, value, input)


@heard
def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p. Raises RuntimeError unless x > (p - 1) / 2."""
    if p < 1:
        raise RuntimeError(f"mvlgamma: p has to be greater than or equal to 1, got {p}")
    if input.is_cpu and bool((input <= (p - 1) / 2).any()):  # a GPU's are not waited for: there such elements give NaN
        raise RuntimeError("mvlgamma: All elements must be greater than (p-1)/2")
    if input.dtype.category < FLOATING_CATEGORY:
        input = input.to(get_default_dtype())
    halves = input.new_tensor([-0.5 * k for k in range(p)])
    value = (input.unsqueeze(-1) + halves).lgamma().sum(-1) + p * (p - 1) / 4 * math.log(math.pi)
    return where(input.detach() <= (p - 1) / 2, math.nan, value) if input.is_cuda else value


mvlgamma = multigammaln
gammainc, gammaincc = FUNCTIONS["igamma"], FUNCTIONS["igammac"]
