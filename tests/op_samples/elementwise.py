"""Samples of elementwise operators: values away from kinks and steps, shapes that broadcast, no elements, no axes."""

import math
from collections.abc import Callable

import numpy as np

import engine
from engine.calls.operands import Scalar
from tests.op_samples.table import Array, add, draw, fixed, random, raw, whole

_SHAPES = [(3, 4), (), (0, 3), (2, 3, 2, 2)]
_PAIRS = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3, 2, 2), (3, 1, 1)), ((), (2, 3)), ((0, 3), (1, 3))]


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.vectorize(function, otypes=[float])(x)


def _digamma(x: float) -> float:
    step = 1e-5
    return (math.lgamma(x + step) - math.lgamma(x - step)) / (2 * step)


def _erfinv(y: float) -> float:
    x = 0.0
    for _ in range(60):
        x -= (math.erf(x) - y) / (2 / math.sqrt(math.pi) * math.exp(-x * x))
    return x


def _bessel_one(x: float) -> float:
    return math.fsum((x / 2) ** (2 * k + 1) / (math.factorial(k) * math.factorial(k + 1)) for k in range(30))


_UNARY: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "acos": (np.arccos, -0.9, 0.9),
    "acosh": (np.arccosh, 1.1, 3.0),
    "asin": (np.arcsin, -0.9, 0.9),
    "asinh": (np.arcsinh, -2.0, 2.0),
    "atan": (np.arctan, -2.0, 2.0),
    "atanh": (np.arctanh, -0.9, 0.9),
    "cos": (np.cos, -2.0, 2.0),
    "cosh": (np.cosh, -2.0, 2.0),
    "digamma": (_each(_digamma), 0.5, 4.0),
    "erf": (_each(math.erf), -2.0, 2.0),
    "erfc": (_each(math.erfc), -2.0, 2.0),
    "erfinv": (_each(_erfinv), -0.9, 0.9),
    "exp": (np.exp, -2.0, 2.0),
    "exp2": (np.exp2, -2.0, 2.0),
    "expm1": (np.expm1, -2.0, 2.0),
    "lgamma": (_each(math.lgamma), 0.5, 4.0),
    "log": (np.log, 0.2, 3.0),
    "log10": (np.log10, 0.2, 3.0),
    "log1p": (np.log1p, -0.8, 3.0),
    "log2": (np.log2, 0.2, 3.0),
    "neg": (np.negative, -2.0, 2.0),
    "positive": (np.positive, -2.0, 2.0),
    "reciprocal": (lambda x: 1 / x, 0.5, 3.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.5, 3.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -3.0, 3.0),
    "sin": (np.sin, -2.0, 2.0),
    "sinc": (np.sinc, 0.2, 2.0),
    "sinh": (np.sinh, -2.0, 2.0),
    "sqrt": (np.sqrt, 0.3, 3.0),
    "square": (np.square, -2.0, 2.0),
    "tan": (np.tan, -1.0, 1.0),
    "tanh": (np.tanh, -2.0, 2.0),
    "frac": (lambda x: x - np.trunc(x), 0.1, 0.9),
    "i0": (np.i0, -2.0, 2.0),
    "i0e": (lambda x: np.exp(-np.abs(x)) * np.i0(x), 0.2, 3.0),
    "i1": (_each(lambda x: _bessel_one(x)), -2.0, 2.0),
    "i1e": (_each(lambda x: math.exp(-abs(x)) * _bessel_one(x)), 0.2, 2.0),
    "erfcx": (_each(lambda x: math.exp(x * x) * math.erfc(x)), -1.0, 3.0),
    "log_ndtr": (_each(lambda x: math.log(math.erfc(-x / math.sqrt(2)) / 2)), -3.0, 2.0),
    "logsigmoid": (lambda x: -np.log1p(np.exp(-x)), -3.0, 3.0),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), -3.0, 3.0),
    "silu": (lambda x: x / (1 + np.exp(-x)), -3.0, 3.0),
}
for _name, (_reference, _low, _high) in _UNARY.items():
    for _shape in _SHAPES:
        add(_name, raw(_name), draw(*_shape, low=_low, high=_high), reference=_reference)
# Kinks at zero, steps at integers.
for _name, _reference in {
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "sgn": np.sign,
    "sign": np.sign,
    "ceil": np.ceil,
    "floor": np.floor,
    "round": np.rint,
    "trunc": np.trunc,
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}.items():
    for _shape in _SHAPES:
        add(_name, raw(_name), draw(*_shape, low=0.6, high=0.9, signs=True), reference=_reference)
for _name, _attributes, _reference in [
    ("elu", (1.3, 1.0, 1.0), lambda x: np.where(x > 0, x, 1.3 * np.expm1(x))),
    ("gelu", ("none",), lambda x: x * (1 + _each(math.erf)(x / math.sqrt(2))) / 2),
    ("gelu", ("tanh",), lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ("hardshrink", (0.5,), lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    ("softshrink", (0.5,), lambda x: np.sign(x) * (np.abs(x) - 0.5)),
    ("hardtanh", (-0.5, 2.0), lambda x: np.clip(x, -0.5, 2.0)),
    ("leaky_relu", (0.2,), lambda x: np.where(x > 0, x, 0.2 * x)),
    ("threshold", (0.1, 20.0), lambda x: np.where(x > 0.1, x, 20.0)),
    ("softplus", (2.0, 20.0), lambda x: np.log1p(np.exp(2 * x)) / 2),
    ("nan_to_num", (0.0, None, None), lambda x: x),
    ("logit", (-1.0,), None),
    ("logit", (0.1,), None),
    ("polygamma", (1,), None),
    ("polygamma", (2,), None),
]:
    for _shape in _SHAPES:
        _array = draw(
            *_shape, low=0.6, high=0.9 if _name == "logit" else 1.5, signs=_name not in ("polygamma", "logit")
        )
        add(_name, raw(_name, *_attributes), _array, reference=_reference)
fixed(
    "nan_to_num",
    raw("nan_to_num", 1.0, 2.0, -3.0),
    np.array([np.nan, np.inf, -np.inf, 5.0]),
    reference=lambda x: np.nan_to_num(x, nan=1, posinf=2, neginf=-3),
)


def _quotient(x: Array, y: Array) -> Array:
    return np.asarray(np.trunc(x / y), np.int64)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "atan2": np.arctan2,
    "copysign": np.copysign,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "nextafter": np.nextafter,
}
for _name, _reference in _BINARY.items():
    for _first, _second in _PAIRS:
        _a, _b = draw(*_first, low=0.5, high=1.0, signs=True), draw(*_second, low=1.1, high=2.0, signs=True)
        add(_name, raw(_name), _a, _b, reference=_reference)
        add(_name, raw(_name), _b, _a, reference=_reference)
    add(
        _name,
        lambda x, name=_name: raw(name)(x, Scalar(0.75)),
        draw(3, 4),
        reference=lambda x, f=_reference: f(x, 0.75),
    )
for _name, _reference in {"fmod": np.fmod, "remainder": np.remainder}.items():
    for _first, _second in _PAIRS:  # quotients between 1.1 and 1.8, or their negatives: away from steps
        add(
            _name,
            raw(_name),
            draw(*_first, low=2.2, high=2.7, signs=True),
            draw(*_second, low=1.5, high=2.0),
            reference=_reference,
        )
for _first, _second in _PAIRS:  # steps: their derivative is 0
    _a, _b = draw(*_first, low=2.2, high=2.7, signs=True), draw(*_second, low=1.5, high=2.0)
    add("div_floor", raw("div_floor"), _a, _b, reference=np.floor_divide)
    add("div_trunc", raw("div_trunc"), _a, _b, reference=lambda x, y: np.trunc(x / y))
    _order, _place = draw(*_first, low=0.5, high=3.0), draw(*_second, low=0.5, high=3.0)
    for _name in ("igamma", "igammac", "zeta"):
        add(_name, raw(_name), _order + (_name == "zeta"), _place, constants=(0,))
    fixed("div_trunc", raw("div_trunc"), whole(-9, 9, *_first), whole(1, 5, *_second), reference=_quotient)
    fixed("div_floor", raw("div_floor"), whole(-9, 9, *_first), whole(1, 5, *_second), reference=np.floor_divide)
    _base = draw(*_first, low=0.4, high=2.0)
    add("pow", raw("pow"), _base, draw(*_second), reference=np.power)
    add("xlogy", raw("xlogy"), draw(*_second), _base, reference=lambda x, y: x * np.log(y))
    add("xlog1py", raw("xlog1py"), draw(*_second), _base * 1e-3, reference=lambda x, y: x * np.log1p(y))
    add(
        "lerp",
        raw("lerp"),
        draw(*_first),
        draw(*_second),
        draw(*_first, low=0.1, high=0.4),
        reference=lambda a, b, w: a + w * (b - a),
    )
for _exponent in (2, 3.0, 0.5, -1.5, 0, 1):
    add("pow", lambda x, e=_exponent: x**e, draw(3, 4, low=0.4, high=2.0), reference=lambda x, e=_exponent: x**e)
add("pow", lambda x: 2.5**x, draw(3, 4), reference=lambda x: 2.5**x)
for _first, _second in _PAIRS:
    _mask = whole(0, 2, *_first).astype(bool)
    _array = draw(*_second)
    add("masked_fill", lambda x, m: x.masked_fill(m, 0.5), _array, _mask, reference=lambda x, m: np.where(m, 0.5, x))
    add("masked_fill", raw("masked_fill"), _array, _mask, draw(), reference=lambda x, m, v: np.where(m, v, x))
add("lerp", lambda a, b: engine.lerp(a, b, 0.7), draw(3, 4), draw(4), reference=lambda a, b: a + 0.7 * (b - a))
for _first, _second in _PAIRS:
    _condition = whole(0, 2, *_first).astype(bool)
    add("where", raw("where"), _condition, draw(*_second), draw(*_first), reference=np.where)
    _a, _low, _high = draw(*_first), draw(*_second, low=-1.0, high=-0.9), draw(*_second, low=0.9, high=1.0)
    add("clamp", raw("clamp"), _a, _low, _high, reference=np.clip)
add(
    "where",
    lambda c, x: engine.where(c, x, 0.5),
    np.array([True, False]),
    draw(3, 2),
    reference=lambda c, x: np.where(c, x, 0.5),
)
add("clamp", lambda x: x.clamp(-0.5, 0.5), draw(3, 4), reference=lambda x: np.clip(x, -0.5, 0.5))
add("clamp", lambda x: x.clamp(min=0.1), draw(3, 4), reference=lambda x: np.maximum(x, 0.1))
add("clamp", lambda x: x.clamp(max=0.1), draw(3, 4), reference=lambda x: np.minimum(x, 0.1))

for _name, _reference in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "floor_divide": np.floor_divide,
    "heaviside": np.heaviside,
}.items():  # PyTorch records floor_divide and heaviside, and cannot differentiate them: test_operators.py
    for _first, _second in _PAIRS:
        _a, _b = whole(-1, 2, *_first) * 1.0, whole(-1, 2, *_second) * 1.0
        fixed(_name, raw(_name), _a, _b if _name != "floor_divide" else _b + 2.5, reference=_reference)
for _name, _reference in {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": np.left_shift,
    "bitwise_right_shift": np.right_shift,
    "gcd": np.gcd,
    "lcm": np.lcm,
}.items():
    for _first, _second in _PAIRS:
        fixed(_name, raw(_name), whole(0, 9, *_first), whole(0, 5, *_second), reference=_reference)
for _shape in _SHAPES:
    fixed("bitwise_not", raw("bitwise_not"), whole(-5, 5, *_shape), reference=np.invert)
    _array = np.asarray(random.choice([0.0, 1.0, -2.0, np.nan, np.inf, -np.inf], _shape))
    for _name, _reference in {
        "isfinite": np.isfinite,
        "isinf": np.isinf,
        "isnan": np.isnan,
        "signbit": np.signbit,
        "logical_not": np.logical_not,
    }.items():
        fixed(_name, raw(_name), _array, reference=_reference)
