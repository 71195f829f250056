"""Samples of reductions, scans, sorting and selection along axes."""

import math

import numpy as np

import engine
from tests.op_samples.table import Array, add, distinct, fixed, raw, whole

F64 = engine.float64


def _norm(sizes: Array, order: float, axes: tuple[int, ...], keepdims: bool) -> Array:
    if math.isinf(order):
        return (sizes.max if order > 0 else sizes.min)(axis=axes, keepdims=keepdims)
    if not order:
        return (sizes != 0).sum(axis=axes, keepdims=keepdims)
    return (sizes**order).sum(axis=axes, keepdims=keepdims) ** (1 / order)


for _shape, _dims, _keepdim in [
    ((3, 4), (1,), False),
    ((3, 4), (0, 1), True),
    ((2, 3, 2, 2), (0, 2), False),
    ((), (), False),
]:
    for _name, _reference in {"sum": np.sum, "mean": np.mean, "prod": np.prod, "amax": np.max, "amin": np.min}.items():
        add(
            _name,
            raw(_name, _dims, _keepdim, F64),
            distinct(*_shape) + 0.03,
            reference=lambda x, f=_reference, d=_dims, k=_keepdim: f(x, axis=d, keepdims=k),
        )
    for _name, _reference in {"all": np.all, "any": np.any}.items():
        fixed(
            _name,
            raw(_name, _dims, _keepdim),
            whole(0, 2, *_shape),
            reference=lambda x, f=_reference, d=_dims, k=_keepdim: f(x, axis=d, keepdims=k),
        )
    for _order in (0.0, 1.0, 2.0, 3.0, math.inf, -math.inf):
        add(
            "vector_norm",
            raw("vector_norm", _order, _dims, _keepdim),
            distinct(*_shape) + 0.03,
            reference=lambda x, o=_order, d=_dims, k=_keepdim: _norm(np.abs(x), o, d, k),
            twice=_order != 0.0,
        )
for _shape, _dims, _keepdim in [((3, 4), (1,), False), ((2, 3, 2, 2), (0, 2), True), ((3, 4), (0, 1), False)]:
    for _name, _reference in {"var": np.var, "std": np.std}.items():
        for _correction in (0, 1):
            add(
                _name,
                raw(_name, _dims, _keepdim, F64, _correction),
                distinct(*_shape),
                reference=lambda x, f=_reference, d=_dims, k=_keepdim, c=_correction: f(x, axis=d, keepdims=k, ddof=c),
            )
for _shape in [(5,), (3, 4), ()]:
    add("median", raw("median", 0), distinct(*_shape), reference=lambda x: np.sort(x, None)[(x.size - 1) // 2])
for _name, _reference in {"sum": np.sum, "prod": np.prod, "any": np.any, "all": np.all}.items():
    _kind = (F64,) if _name in ("sum", "prod") else ()
    (add if _kind else fixed)(
        _name, raw(_name, (1,), False, *_kind), np.zeros((3, 0)), reference=lambda x, f=_reference: f(x, axis=1)
    )
add(
    "prod",
    raw("prod", (1,), False, F64),
    np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0], [1.0, 2.0, 3.0]]),
    reference=lambda x: x.prod(1),
)
add(
    "cumprod",
    raw("cumprod", 1, F64),
    np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0], [1.0, 0.0, 3.0]]),
    reference=lambda x: x.cumprod(1),
)
for _name, _pick in {"max_dim": "argmax", "min_dim": "argmin"}.items():
    for _shape, _dim in [((3, 4), 1), ((2, 3, 2, 2), 1), ((0, 3), 1)]:
        for _keepdim in (False, True):
            add(
                _name,
                raw(_name, _dim, _keepdim),
                distinct(*_shape),
                reference=lambda x, p=_pick, d=_dim, k=_keepdim: (
                    getattr(x, p[3:])(axis=d, keepdims=k),
                    getattr(np, p)(x, axis=d, keepdims=k),
                ),
            )
for _shape, _dim in [((3, 4), 1), ((3, 4), 0), ((2, 3, 2, 2), 1), ((0, 3), 1)]:
    _array = distinct(*_shape) + 0.03
    add("cumsum", raw("cumsum", _dim, F64), _array, reference=lambda x, d=_dim: np.cumsum(x, d))
    add("cumprod", raw("cumprod", _dim, F64), _array, reference=lambda x, d=_dim: np.cumprod(x, d))
    add("logcumsumexp", raw("logcumsumexp", _dim), _array, reference=lambda x, d=_dim: np.logaddexp.accumulate(x, d))
    add("cummax", raw("cummax", _dim), _array)
    add("cummin", raw("cummin", _dim), _array)
    for _name in ("softmax", "log_softmax"):
        add(_name, raw(_name, _dim), _array)
for _shape, _dim in [((3, 5), 1), ((2, 3, 2, 2), 1)]:
    _array = distinct(*_shape)
    for _descending in (False, True):
        add(
            "sort",
            raw("sort", _dim, _descending),
            _array,
            reference=lambda x, d=_dim, s=-1 if _descending else 1: (s * np.sort(s * x, d), np.argsort(s * x, d)),
        )
    add(
        "topk",
        raw("topk", 2, _dim, True, True),
        _array,
        reference=lambda x, d=_dim: (-np.sort(-x, d).take([0, 1], d), np.argsort(-x, d).take([0, 1], d)),
    )
    add("topk", raw("topk", 2, _dim, False, True), _array)
    add(
        "kthvalue",
        raw("kthvalue", 2, _dim, False),
        _array,
        reference=lambda x, d=_dim: (np.sort(x, d).take(1, d), np.argsort(x, d).take(1, d)),
    )
    add("median_dim", raw("median_dim", 0, _dim, True), _array)
    add("mode", raw("mode", 0, _dim, False), _array)
