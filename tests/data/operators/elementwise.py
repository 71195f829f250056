"""Cases of engine.ops.pointwise.composed, engine.ops.shape.composed and engine.ops.reduce.statistics."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case, integers, normal, uniform

CASES: dict[str, Case] = {}
X, Y, Z = normal(1, 3, 4), normal(2, 3, 4), uniform(3, 0.5, 2, 3, 4)
CUBE = normal(4, 2, 3, 4)
ODD = np.array([np.nan, np.inf, -np.inf, 1.5, -2.0, 0.0])
N, M = integers(5, -9, 10, 3, 4), integers(6, 1, 7, 3, 4)


def _case(name: str, function: Any, *inputs: np.ndarray, **options: Any) -> None:
    CASES[name] = Case(function, inputs, **options)


def _plain(name: str, function: Any, *inputs: np.ndarray) -> None:
    CASES[name] = Case(function, inputs, twice=False, constants=tuple(range(len(inputs))))


_case("addcmul", lambda t, x, y, z: t.addcmul(x, y, z, value=0.5), X, Y, Z[0].copy())
_case("addcdiv", lambda t, x, y, z: t.addcdiv(x, y, z, value=0.5), X, Y, Z)
_case("nan_to_num", lambda t, x: t.nan_to_num(x, posinf=5.0, neginf=-5.0), ODD, twice=False)
_case("nan_to_num values", lambda t, x: t.nan_to_num(x, 7.0, 3.0, -4.0), ODD, twice=False)
_plain("nan_to_num integers", lambda t, x: t.nan_to_num(x), N)
_case("frac", lambda t, x: t.frac(x), X * 3)
_case("deg2rad", lambda t, x: t.deg2rad(x), X)
_case("rad2deg", lambda t, x: t.rad2deg(x), X)
_plain("deg2rad integers", lambda t, x: t.deg2rad(x), N)
_case("clamp_min", lambda t, x: t.clamp_min(x, 0.2), X)
_case("clamp_max", lambda t, x: t.clamp_max(x, 0.2), X)
_case("logit", lambda t, x: t.logit(x), uniform(7, 0.1, 0.9, 3, 4))
_case("logit eps", lambda t, x: t.logit(x, 0.2), uniform(7, 0.01, 0.99, 3, 4))
_case("sinc", lambda t, x: t.sinc(x), X)
_case("sinc of 0", lambda t, x: t.sinc(x), np.array([0.0, 0.5, 1.0]), twice=False)
_case("xlogy", lambda t, x, y: t.xlogy(x, y), X, Z)
_case(
    "xlogy of 0",
    lambda t, x, y: t.xlogy(x, y),
    np.array([0.0, 0.0, 1.0, 0.0]),
    np.array([0.0, np.nan, 0.5, -1.0]),
    twice=False,
)
_case(
    "heaviside",
    lambda t, x, y: t.heaviside(x, y),
    np.array([-1.0, 0.0, 2.0]),
    np.array([0.5, 0.5, 0.5]),
    twice=False,
    constants=(0, 1),
)
_case("copysign", lambda t, x, y: t.copysign(x, y), X, Y)
_case("logaddexp2", lambda t, x, y: t.logaddexp2(x, y), X, Y)
_case("ldexp", lambda t, x, n: t.ldexp(x, n), X, M)
_case("dist", lambda t, x, y: t.dist(x, y), X, Y)
_case("dist 1", lambda t, x, y: t.dist(x, y, 1), X, Y)
_case("rsub", lambda t, x, y: t.rsub(x, y, alpha=2), X, Y)
_case("masked_scatter", lambda t, x, m, s: t.masked_scatter(x, m, s), X, N > 0, normal(8, 12))
_plain("isclose", lambda t, x, y: [t.isclose(x, y, rtol=0.5), t.isclose(x, x, equal_nan=True)], ODD, ODD[::-1].copy())
_plain("isposinf", lambda t, x: [t.isposinf(x), t.isneginf(x), t.isreal(x)], ODD)
_plain("gcd", lambda t, x, y: [t.gcd(x, y), t.lcm(x, y)], N, M)
_plain("nextafter", lambda t, x, y: t.nextafter(x, y) - x, X, Y)
for _alias in ("arccosh", "arcsinh", "arctan", "arctanh", "arccos", "arcsin", "negative", "fix", "absolute", "sgn"):
    _case(_alias, lambda t, x, name=_alias: getattr(t, name)(x), Z + 0.6 if _alias == "arccosh" else X / 4)
for _alias in ("arctan2", "multiply", "subtract", "divide", "true_divide"):
    _case(_alias, lambda t, x, y, name=_alias: getattr(t, name)(x, y), X, Z)
for _alias in ("greater", "greater_equal", "less", "less_equal", "not_equal"):
    _plain(_alias, lambda t, x, y, name=_alias: getattr(t, name)(x, y), N, M)

_case("nansum", lambda t, x: t.nansum(x), ODD, twice=False)
_case("nansum dim", lambda t, x: t.nansum(x, 1, True), X)
_case("nanmean", lambda t, x: t.nanmean(x.reshape(2, 3)[:, 1:], 1), np.where(np.isinf(ODD), 2.0, ODD), twice=False)
_plain("count_nonzero", lambda t, x: [t.count_nonzero(x), t.count_nonzero(x, 1), t.count_nonzero(x, (0, 1))], N)
_case("aminmax", lambda t, x: t.aminmax(x, dim=1), X)
_case("aminmax of all", lambda t, x: t.aminmax(x), X)
_case("renorm", lambda t, x: t.renorm(x, 2, 0, 1.5), X)

for _name in ("atleast_1d", "atleast_2d", "atleast_3d"):
    for _label, _array in {"0-dim": np.asarray(1.5), "vector": X[0].copy(), "matrix": X, "cube": CUBE}.items():
        _case(f"{_name} {_label}", lambda t, x, name=_name: getattr(t, name)(x), _array)
_case("ravel", lambda t, x: t.ravel(x), CUBE.transpose(2, 0, 1))
_case("dstack", lambda t, x, y: t.dstack([x, y]), X, Y)
_case("dstack vectors", lambda t, x, y: t.dstack([x, y]), X[0].copy(), Y[0].copy())
_case("column_stack", lambda t, x, y: t.column_stack([x, y]), X[:, 0].copy(), Y)
_case("row_stack", lambda t, x, y: t.row_stack([x, y]), X[0].copy(), Y)
_case("hsplit", lambda t, x: t.hsplit(x, 2), X)
_case("hsplit at", lambda t, x: t.hsplit(x, [1, 3]), X)
_case("vsplit", lambda t, x: t.vsplit(x, 3), X)
_case("dsplit", lambda t, x: t.dsplit(x, 2), CUBE)
_case("split_with_sizes", lambda t, x: t.split_with_sizes(x, [1, 3], 1), X)
_case("fliplr", lambda t, x: t.fliplr(x), X)
_case("flipud", lambda t, x: t.flipud(x), X)
for _turns in (-1, 0, 1, 2, 3, 5):
    _case(f"rot90 {_turns}", lambda t, x, k=_turns: t.rot90(x, k), X)
    _case(f"rot90 {_turns} of a cube", lambda t, x, k=_turns: t.rot90(x, k, (1, 2)), CUBE)
for _offset in (-1, 0, 2):
    _case(f"diag_embed {_offset}", lambda t, x, o=_offset: t.diag_embed(x, o), X)
    _case(f"diag_embed {_offset} axes", lambda t, x, o=_offset: t.diag_embed(x, o, 0, 2), X)
    _case(f"diag of a vector {_offset}", lambda t, x, o=_offset: t.diag(x, o), X[0].copy())
    _case(f"diag of a matrix {_offset}", lambda t, x, o=_offset: t.diag(x, o), X)
    _case(f"diagflat {_offset}", lambda t, x, o=_offset: t.diagflat(x, o), X[:2, :2].copy())
_case("block_diag", lambda t, x, y, z: t.block_diag(x, y, z), X, Y[0].copy(), np.asarray(2.0))
# PyTorch's vander has no derivative.
_plain("vander", lambda t, x: t.vander(x, 3), X[0].copy())
_plain("vander increasing", lambda t, x: t.vander(x, increasing=True), X[0].copy())
_case("cartesian_prod", lambda t, x, y: t.cartesian_prod(x, y), X[0].copy(), Y[:, 0].copy())
_case("combinations", lambda t, x: t.combinations(x, 2), X[0].copy())
_case("combinations with replacement", lambda t, x: t.combinations(x, 2, True), X[0].copy())
_case("diagonal_scatter", lambda t, x, s: t.diagonal_scatter(x, s, 1), X, normal(9, 3))
_case("select_scatter", lambda t, x, s: t.select_scatter(x, s, 1, 2), X, normal(9, 3))
_case("slice_scatter", lambda t, x, s: t.slice_scatter(x, s, 1, 0, 4, 2), X, normal(9, 3, 2))
_case("index_add", lambda t, x, i, s: t.index_add(x, 0, i, s, alpha=2), X, np.array([0, 2, 0]), normal(9, 3, 4))
_case("index_copy", lambda t, x, i, s: t.index_copy(x, 1, i, s), X, np.array([3, 0]), normal(9, 3, 2))
_case("index_fill", lambda t, x, i: t.index_fill(x, 1, i, 2.5), X, np.array([3, 0]))
_case(
    "index_put",
    lambda t, x, i, j, s: t.index_put(x, (i, j), s, accumulate=True),
    X,
    np.array([0, 2, 0]),
    np.array([1, 1, 1]),
    normal(9, 3),
)
_plain("unravel_index", lambda t, x: [i.contiguous() for i in t.unravel_index(x, (3, 4))], M)
for _name, _function in {
    "addcmul_": lambda t, x, y: x.clone().addcmul_(x, y, value=0.5),
    "nan_to_num_": lambda t, x, y: (x * 1).nan_to_num_(),
    "tril_": lambda t, x, y: (x * y).tril_(),
    "cumsum_": lambda t, x, y: (x * y).cumsum_(1),
    "sinc_": lambda t, x, y: (x * y).sinc_(),
    "erf_": lambda t, x, y: (x * y).erf_(),
    "xlogy_": lambda t, x, y: (x * 1).xlogy_(y * y + 1),
    "fill_diagonal_": lambda t, x, y: (x * y).fill_diagonal_(3.0),
}.items():
    _case(_name, _function, X, Y)
