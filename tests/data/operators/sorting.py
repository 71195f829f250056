"""Cases of engine.ops.sorting.operator, engine.ops.sorting.sets and engine.ops.reduce.cumulative."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case, integers, normal

CASES: dict[str, Case] = {}
X = normal(1, 4, 6)
CUBE = normal(2, 2, 3, 5)
TURNED = CUBE.transpose(2, 0, 1)
WITH_NAN = X.copy()
WITH_NAN[1, 2] = WITH_NAN[3, 0] = WITH_NAN[3, 5] = np.nan
COUNTS = integers(3, 0, 6, 20)

_PAIRS = {
    "sort": lambda t, x, dim: t.sort(x, dim),
    "sort descending": lambda t, x, dim: t.sort(x, dim, descending=True),
    "topk": lambda t, x, dim: t.topk(x, 2, dim),
    "topk smallest": lambda t, x, dim: t.topk(x, 2, dim, largest=False),
    "kthvalue": lambda t, x, dim: t.kthvalue(x, 2, dim),
    "kthvalue kept": lambda t, x, dim: t.kthvalue(x, 2, dim, keepdim=True),
    "median": lambda t, x, dim: t.median(x, dim),
    "median kept": lambda t, x, dim: t.median(x, dim, keepdim=True),
    "nanmedian": lambda t, x, dim: t.nanmedian(x, dim),
    "cummax": lambda t, x, dim: t.cummax(x, dim),
    "cummin": lambda t, x, dim: t.cummin(x, dim),
    "logcumsumexp": lambda t, x, dim: t.logcumsumexp(x, dim),
    "diff": lambda t, x, dim: t.diff(x, dim=dim),
    "trapezoid": lambda t, x, dim: t.trapezoid(x, dim=dim, dx=0.5),
    "cumulative_trapezoid": lambda t, x, dim: t.cumulative_trapezoid(x, dim=dim),
    "quantile": lambda t, x, dim: t.quantile(x, 0.3, dim),
    "argsort": lambda t, x, dim: t.argsort(x, dim),
}
for _name, _function in _PAIRS.items():
    for _label, _array in {"": X, " cube": CUBE, " turned": TURNED}.items():
        if _name == "quantile" and _label == " turned":
            continue  # PyTorch's result is a view on its sorted copy there
        for _dim in (0, -1):
            CASES[f"{_name}{_label} dim {_dim}"] = Case(
                lambda t, x, f=_function, dim=_dim: f(t, x, dim), (_array,), twice=_name != "argsort"
            )

CASES["sort stable"] = Case(lambda t, x: t.sort(x, stable=True), (COUNTS,), twice=False)
CASES["sort stable descending"] = Case(lambda t, x: t.sort(x, stable=True, descending=True), (COUNTS,), twice=False)
CASES["sort with nan"] = Case(lambda t, x: t.sort(x, stable=True), (WITH_NAN,), twice=False)
CASES["sort 0-dim"] = Case(lambda t, x: t.sort(x), (np.asarray(0.5),), twice=False)
CASES["msort"] = Case(lambda t, x: t.msort(x), (X,))
CASES["topk of many"] = Case(lambda t, x: t.topk(x, 3), (normal(4, 2, 100),))
CASES["topk smallest of many"] = Case(lambda t, x: t.topk(x, 3, 0, largest=False), (normal(4, 100, 2),))
CASES["topk none"] = Case(lambda t, x: t.topk(x, 0), (X,), twice=False)
CASES["median of all"] = Case(lambda t, x: t.median(x), (X,))
CASES["median with nan"] = Case(lambda t, x: t.median(x, 1), (WITH_NAN,), twice=False)
CASES["nanmedian with nan"] = Case(lambda t, x: t.nanmedian(x, 1), (WITH_NAN,), twice=False)
CASES["nanmedian of all with nan"] = Case(lambda t, x: t.nanmedian(x), (WITH_NAN,), twice=False)
CASES["mode"] = Case(lambda t, x: t.mode(x.reshape(4, 5), -1), (COUNTS,), twice=False)
for _interpolation in ("linear", "lower", "higher", "nearest", "midpoint"):
    CASES[f"quantile {_interpolation}"] = Case(
        lambda t, x, i=_interpolation: t.quantile(x, 0.37, 1, interpolation=i), (X,)
    )
CASES["quantile of all"] = Case(lambda t, x: t.quantile(x, 0.6), (X,))
CASES["quantile several"] = Case(
    lambda t, x, q: t.quantile(x, q, 1, keepdim=True), (X, np.array([0.1, 0.5, 1.0])), constants=(1,)
)
CASES["quantile with nan"] = Case(lambda t, x: t.quantile(x, 0.5, 1), (WITH_NAN,), twice=False)
CASES["nanquantile with nan"] = Case(lambda t, x: t.nanquantile(x, 0.4, 1), (WITH_NAN,), twice=False)
CASES["diff twice with ends"] = Case(
    lambda t, x, a, b: t.diff(x, 2, 1, prepend=a, append=b), (X, normal(5, 4, 1), normal(6, 4, 2))
)
CASES["trapezoid at points"] = Case(lambda t, y, x: t.trapezoid(y, x), (X, np.sort(normal(7, 6))))
CASES["logcumsumexp far"] = Case(
    lambda t, x: t.logcumsumexp(x, 0), (np.array([-800.0, 0.0, 700.0, 900.0, 20.0]),), twice=False
)


def _plain(name: str, function: Any, *inputs: np.ndarray) -> None:
    CASES[name] = Case(function, inputs, twice=False, constants=tuple(range(len(inputs))))


_plain("unique", lambda t, x: t.unique(x, return_inverse=True, return_counts=True), COUNTS)
_plain("unique of a matrix", lambda t, x: t.unique(x.reshape(4, 5), return_inverse=True), COUNTS)
_plain("unique rows", lambda t, x: t.unique(x, return_inverse=True, return_counts=True, dim=0), integers(8, 0, 2, 8, 2))
_plain("unique_consecutive", lambda t, x: t.unique_consecutive(x, return_inverse=True, return_counts=True), COUNTS // 3)
_plain(
    "unique_consecutive rows", lambda t, x: t.unique_consecutive(x, return_counts=True, dim=0), integers(8, 0, 2, 8, 2)
)
_plain("bincount", lambda t, x: t.bincount(x, minlength=9), COUNTS)
_plain("bincount weighted", lambda t, x, w: t.bincount(x, w), COUNTS, normal(9, 20))
_plain("histc", lambda t, x: t.histc(x, 5, -1, 2), X)
_plain("histc of the range", lambda t, x: t.histc(x, 7), X)
_plain("searchsorted", lambda t, x, v: t.searchsorted(x, v), np.sort(COUNTS), integers(10, -1, 8, 3, 3))
_plain(
    "searchsorted right", lambda t, x, v: t.searchsorted(x, v, right=True), np.sort(COUNTS), integers(10, -1, 8, 3, 3)
)
_plain("searchsorted rows", lambda t, x, v: t.searchsorted(x, v), np.sort(X, -1), normal(11, 4, 3))
_plain("bucketize", lambda t, x, v: t.bucketize(x, v, right=True), COUNTS, np.array([1, 3, 4]))
_plain("isin", lambda t, x, v: t.isin(x, v), COUNTS, np.array([1, 4]))
_plain("tril_indices", lambda t, x: t.tril_indices(3, 4, 1), COUNTS)
_plain("triu_indices", lambda t, x: t.triu_indices(4, 3, -1), COUNTS)
_plain("argwhere", lambda t, x: t.argwhere(x.reshape(4, 5) > 2), COUNTS)
