"""Cases at special values: zeros of both signs, infinities, NaN, subnormal and large numbers, ties; and infinite
gradients, which come from a factor (`by`) that is held constant.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.data.operators.case import Case

CASES: dict[str, Case] = {}
_INF, _NAN = np.inf, np.nan
_X = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -1.5, 1e-310, 88.8, -88.8, 650.0, 1e300, -1e300, _INF, -_INF, _NAN]
)
_BY = np.resize([1.0, _INF, -_INF, 2.0, 0.0], _X.shape)
_FIRST, _SECOND = (
    grid.ravel().copy() for grid in np.meshgrid(_X[[0, 2, 3, 4, 7, 9, 14, 15, 16]], _X[[0, 2, 3, 6, 14, 16]])
)


def _case(name: str, function: Callable[..., Any], *inputs: np.ndarray, **options: Any) -> None:
    CASES[name] = Case(function, inputs, twice=False, **options)


for _name in (  # noqa: SIM905
    "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac isfinite isinf isnan log "
    "log10 log1p log2 logit neg nn.functional.celu nn.functional.elu nn.functional.hardswish nn.functional.leaky_relu "
    "nn.functional.logsigmoid nn.functional.selu nn.functional.softplus nn.functional.softsign "
    "reciprocal relu round rsqrt sgn sigmoid sign sin sinh sqrt square tan tanh trunc"
).split():

    def _unary(t: Any, x: Any, name: str = _name) -> Any:
        function = t
        for part in name.split("."):
            function = getattr(function, part)
        return function(x)

    _case(_name, _unary, _X)
for _name in ("ceil", "floor", "round", "sign", "sgn", "trunc", "relu", "frac"):
    _case(f"{_name} with infinite gradients", lambda t, x, by, f=_name: getattr(t, f)(x) * by, _X, _BY, constants=(1,))
for _name in ("add sub mul atan2 logaddexp fmax fmin maximum minimum pow remainder xlogy eq lt").split():  # noqa: SIM905
    _case(_name, lambda t, x, y, f=_name: getattr(t, f)(x, y), _FIRST, _SECOND)
for _mode in ("floor", "trunc"):
    _case(f"div {_mode}", lambda t, x, y, m=_mode: t.div(x, y, rounding_mode=m), _FIRST, _SECOND)
for _power in (0, 0.5, 1, 2, 3, -1, -0.5):
    _case(f"pow {_power}", lambda t, x, p=_power: x**p, _X)
for _base in (0.0, 1.0, 2.0):
    _case(f"{_base} to a power", lambda t, x, b=_base: b**x, _X)
_case("clamp", lambda t, x: t.clamp(x, -1, 1), _X)
_case("clamp min above max", lambda t, x: t.clamp(x, 2, -2), _X)
_case("clamp tensors", lambda t, x, y: t.clamp(x, y, y * 0 + 1), _FIRST, _SECOND)
_case("where the other branch is NaN", lambda t, x: t.where(x > 0, x, x.detach().log()), _X)
_case("masked_fill", lambda t, x: t.softmax(x.masked_fill(x.detach() == x.detach(), -_INF)[:4], 0), _X)
_case("rounding half to even", lambda t, x: t.round(x), np.array([0.5, 1.5, 2.5, -0.5, -1.5]))

_ROWS = {
    "ties": np.array([[1.0, 1, 2, 2, 0], [3, 3, 3, 3, 3], [0, -0.0, 0, -0.0, 0]]),
    "infinities": np.array([[1.0, _INF, 2, 2, 0], [-_INF] * 5, [_INF, -_INF, 1, 2, 3]]),
    "zeros": np.array([[1.0, 2, 0, 3, 4], [0, 0, 1, 2, 3], [0] * 5]),
    "one column": np.array([[1.5], [0.0], [-2.0]]),
    "NaN": np.array([[1.0, _NAN, 2, 2, 0], [_NAN, _NAN, 3, 3, _NAN], [0, 1, 2, 3, 4]]),
}
for _kind, _rows in _ROWS.items():
    for _name in ("sum", "mean", "std", "var", "logsumexp", "softmax", "log_softmax", "cumsum", "nansum"):
        _case(f"{_name} of {_kind}", lambda t, x, f=_name: getattr(t, f)(x, 1), _rows)
    for _name in ("max", "min", "argmax", "argmin", "sort", "cummax", "cummin", "median"):
        _case(
            f"{_name} of {_kind}",
            lambda t, x, f=_name: getattr(t, f)(x, 1)[0] if "arg" not in f else getattr(t, f)(x, 1),
            _rows,
        )
    if _kind != "NaN":  # PyTorch's gradients of these are NaN throughout a row with NaN
        for _name in ("amax", "amin", *(["cumprod"] if _kind != "infinities" else [])):
            _case(f"{_name} of {_kind}", lambda t, x, f=_name: getattr(t, f)(x, 1), _rows)
    for _name in ("max", "median"):
        _case(f"{_name} of all {_kind}", lambda t, x, f=_name: getattr(t, f)(x), _rows)
    if _kind in ("ties", "zeros", "one column"):
        for _order in (0.5, 1, 2, 3, _INF):
            _case(f"norm {_order} of {_kind}", lambda t, x, p=_order: t.linalg.vector_norm(x, p, 1), _rows)
        _case(f"prod of {_kind}", lambda t, x: t.prod(x, 1), _rows)
        _case(f"normalize of {_kind}", lambda t, x: t.nn.functional.normalize(x), _rows)
_case("var of fewer than correction", lambda t, x: t.var(x, 1, correction=5), _ROWS["ties"])
for _loss in ("smooth_l1_loss", "huber_loss", "l1_loss"):
    _case(
        _loss, lambda t, x, f=_loss: getattr(t.nn.functional, f)(x, x.detach() * 0.5, reduction="none"), _ROWS["ties"]
    )
_case(
    "integer division",
    lambda t, x, y: t.div(x, y, rounding_mode="trunc"),
    np.array([7, -7, 7, -7]),
    np.array([2, 2, -2, -2]),
)
_case("integer remainder", lambda t, x, y: t.remainder(x, y), np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2]))
_case("integer fmod", lambda t, x, y: t.fmod(x, y), np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2]))
