"""Cases of the core: every elementwise function, reductions, scans, copies, indexing and writing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.data.operators.case import Case, integers, normal, uniform

CASES: dict[str, Case] = {}


_WITHOUT_DERIVATIVE = frozenset(
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isinf isnan isfinite signbit all any".split()  # noqa: SIM905
)


def _case(name: str, function: Callable[..., Any], *inputs: np.ndarray, **options: Any) -> None:
    if name.split(" ")[0] in _WITHOUT_DERIVATIVE:
        options["twice"] = False
    CASES[name] = Case(function, inputs, **options)


# Away from kinks and from the ends of domains; the names are functions of torch and of torch.special.
for _names, _low, _high in [
    ("acos asin atanh erfinv", -0.9, 0.9),
    ("acosh", 1.1, 3.0),
    ("asinh atan cos cosh erf erfc exp exp2 expm1 sin sinh square tanh sigmoid relu abs", -2.0, 2.0),
    ("tan", -1.0, 1.0),
    ("log log10 log2 rsqrt reciprocal sqrt lgamma digamma", 0.3, 3.0),
    ("log1p", -0.8, 3.0),
    ("neg positive sgn sign sinc angle i0 nan_to_num logical_not isinf isnan isfinite signbit", 0.2, 2.0),
    ("ceil floor round trunc frac", -3.0, 3.0),
    ("special.i0e special.i1 special.i1e special.erfcx special.log_ndtr special.ndtr special.entr", 0.1, 3.0),
    ("logit", 0.1, 0.9),
]:
    for _name in _names.split():

        def _unary(t: Any, x: Any, name: str = _name) -> Any:
            return getattr(t.special, name[8:])(x) if name.startswith("special.") else getattr(t, name)(x)

        _case(_name, _unary, uniform(11, _low, _high, 3, 4), tolerance=1e-9)
_A, _B = uniform(1, 0.3, 2.0, 3, 4), uniform(2, 0.3, 2.0, 4)
for _name in (  # noqa: SIM905
    "add sub mul div pow atan2 copysign hypot logaddexp logaddexp2 fmax fmin maximum minimum xlogy nextafter fmod "
    "remainder eq ne lt le gt ge logical_and logical_or logical_xor"
).split():
    _case(_name, lambda t, x, y, name=_name: getattr(t, name)(x, y), _A, _B)
for _mode in ("floor", "trunc"):
    _case(f"div {_mode}", lambda t, x, y, m=_mode: t.div(x * 5 - 4, y, rounding_mode=m), _A, _B)
for _name in ("igamma", "igammac", "special.zeta"):

    def _of_second(t: Any, x: Any, y: Any, name: str = _name) -> Any:
        return t.special.zeta(x + 1.5, y) if name == "special.zeta" else getattr(t, name)(x, y)

    _case(_name, _of_second, _A, _B, constants=(0,), tolerance=1e-9)
_I, _J = integers(3, 0, 9, 3, 4), integers(4, 1, 5, 4)
for _name in (  # noqa: SIM905
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift gcd lcm floor_divide remainder fmod div "
    "eq logical_xor"
).split():
    _case(f"{_name} of integers", lambda t, x, y, name=_name: getattr(t, name)(x - 4, y), _I, _J)
_case("div trunc of integers", lambda t, x, y: t.div(x - 4, y, rounding_mode="trunc"), _I, _J)
_case("heaviside", lambda t, x, y: t.heaviside(x, y), _A - 1, _B, constants=(0, 1))
_case("bitwise_not", lambda t, x: t.bitwise_not(x), _I)
_case("where", lambda t, x, y: t.where(x > 1, x, y), _A, _B)
_case("clamp", lambda t, x, y: t.clamp(x, y * 0 + 0.5, y + 0.5), _A, _B)
_case("lerp", lambda t, x, y: t.lerp(x, y, x * 0.3), _A, _B)
_case("masked_fill", lambda t, x: x.masked_fill(x > 1, 2.5), _A)
_case("polygamma", lambda t, x: t.polygamma(2, x), _A, tolerance=1e-9)

_X = normal(5, 2, 3, 4)
for _name in ("sum", "mean", "prod", "amax", "amin", "std", "var", "logsumexp", "max", "min", "all", "any", "norm"):
    _keep = {"keepdim": True}
    if _name != "norm":
        _case(f"{_name} of an axis", lambda t, x, name=_name: getattr(t, name)(x, 1), _X)
    if _name != "logsumexp":
        _case(f"{_name} of all", lambda t, x, name=_name: getattr(t, name)(x), _X)
    if _name in ("sum", "mean", "amax", "std", "var"):
        _case(f"{_name} of two", lambda t, x, name=_name, k=_keep: getattr(t, name)(x, (0, 2), **k), _X)
for _name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax", "log_softmax"):
    _case(_name, lambda t, x, name=_name: getattr(t, name)(x, 1), _X)
_case("cumprod of zeros", lambda t, x: t.cumprod(x * (x.detach() > -0.5).to(x.dtype), 1), _X)
_case("prod of zeros", lambda t, x: t.prod(x * (x.detach() > -0.5).to(x.dtype), 2), _X)
for _order in (0.5, 1, 2, 3, float("inf"), -1):
    _case(f"vector_norm {_order}", lambda t, x, p=_order: t.linalg.vector_norm(x, p, 2), _X, twice=_order != -1)

_case("unfold", lambda t, x: x.unfold(2, 3, 1), _X)
_case("as_strided", lambda t, x: t.as_strided(x * 1, (2, 3), (4, 2), 1), _X)
_case(  # PyTorch gives its input the gradient of what was overwritten
    "as_strided_scatter",
    lambda t, x, s: t.as_strided_scatter(x, s, (2, 3), (4, 1), 1),
    _X,
    normal(18, 2, 3),
    constants=(0,),
)
_case("index2", lambda t, x, i, j: x[i, :, j], _X, np.array([0, 1, 0]), np.array([3, 3, 1]))
_case("index3", lambda t, x, i, j: x[i, j, i], _X, np.array([0, 1, 0]), np.array([2, 2, 1]))
_case("scatter", lambda t, x, i, s: t.scatter(x, 2, i, s), _X, np.array([[[0, 2]] * 3] * 2), normal(6, 2, 3, 2))
_MEET = integers(7, 0, 4, 2, 3, 5)
for _name in ("sum", "prod", "mean", "amax", "amin"):
    for _own in (True, False):

        def _reduce(t: Any, x: Any, i: Any, s: Any, name: str = _name, own: bool = _own) -> Any:
            return t.scatter_reduce(x, 2, i, s, name, include_self=own)

        _case(f"scatter_reduce {_name} {_own}", _reduce, _X, _MEET, normal(8, 2, 3, 5))
_case(
    "index_reduce",
    lambda t, x, i, s: t.index_reduce(x, 1, i, s, "prod"),
    _X,
    np.array([0, 2, 0]),
    normal(9, 2, 3, 4),
)
_case("put", lambda t, x, i, s: t.put(x, i, s, accumulate=True), _X, np.array([0, 5, 0]), normal(10, 3))
_case("write in place", lambda t, x, y: _written(x * 1, y), _X, normal(12, 2, 4))
_case("copy", lambda t, x, y: (x * 1).copy_(y), _X, normal(13, 3, 1))
_case("masked_scale", lambda t, x: t.nn.functional.dropout(x, 0.0, True), _X)
_case("linear", lambda t, x, w, b: t.nn.functional.linear(x, w, b), _X, normal(14, 5, 4), normal(15, 5))
_case("matmul of batches", lambda t, x, y: x @ y, _X, normal(16, 4, 5))
_case("gradient", lambda t, x: t.gradient(x, dim=(1, 2), edge_order=2), _X)

_SIGNAL = normal(17, 40)
_case(
    "stft",
    lambda t, x: t.view_as_real(t.stft(x, 16, 4, window=t.hann_window(16, dtype=x.dtype), return_complex=True)),
    _SIGNAL,
    twice=False,
)


def _round_trip(t: Any, x: Any) -> Any:
    window = t.hann_window(16, dtype=x.dtype)
    return t.istft(t.stft(x, 16, 4, window=window, return_complex=True).abs() * (1 + 0.5j), 16, 4, window=window)


_case("istft", _round_trip, _SIGNAL, twice=False)


def _written(x: Any, y: Any) -> Any:
    x[:, 1].mul_(y)
    return x
