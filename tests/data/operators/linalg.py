"""Cases of engine.linalg and engine.ops.matmul.einsum. What depends on a sign LAPACK may choose freely is squared."""

from typing import Any

import numpy as np

from tests.data.operators.case import Case, normal

CASES: dict[str, Case] = {}

SQUARE = normal(1, 4, 4) + 3 * np.eye(4)
BATCH = normal(2, 2, 3, 3) + 3 * np.eye(3)
_FACTOR = normal(3, 2, 3, 3)
POSITIVE = _FACTOR @ _FACTOR.transpose(0, 2, 1) + np.eye(3)
TALL, WIDE = normal(4, 2, 5, 3), normal(5, 2, 3, 5)
SINGULAR = np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 0.5])
DEFICIENT = normal(6, 4, 2) @ normal(7, 2, 3)


def _symmetric(x: Any) -> Any:
    return (x + x.transpose(-1, -2)) / 2


def _case(name: str, function: Any, *inputs: np.ndarray, tolerance: float = 1e-10, twice: bool = True) -> None:
    CASES[name] = Case(function, inputs, twice, tolerance=tolerance)


for _label, _matrix in {"": SQUARE, " batch": BATCH, " turned": BATCH.transpose(0, 2, 1)}.items():
    _case(f"inv{_label}", lambda t, a: t.linalg.inv(a), _matrix)
    _case(f"det{_label}", lambda t, a: t.linalg.det(a), _matrix)
    _case(f"slogdet{_label}", lambda t, a: t.linalg.slogdet(a), _matrix)
    _case(f"logdet{_label}", lambda t, a: t.logdet(a @ a.transpose(-1, -2)), _matrix)
    for _power in (-1, 1, 3):
        _case(f"matrix_power {_power}{_label}", lambda t, a, n=_power: t.linalg.matrix_power(a, n), _matrix)
    CASES[f"matrix_power 0{_label}"] = Case(lambda t, a: t.linalg.matrix_power(a, 0), (_matrix,), False, (0,))
_case("det singular", lambda t, a: t.linalg.det(a), SINGULAR, twice=False)
_case("solve", lambda t, a, b: t.linalg.solve(a, b), SQUARE, normal(8, 4, 2))
_case("solve vector", lambda t, a, b: t.linalg.solve(a, b), SQUARE, normal(8, 4))
_case("solve batch", lambda t, a, b: t.linalg.solve(a, b), BATCH, normal(9, 2, 3, 2))
_case("solve batch of vectors", lambda t, a, b: t.linalg.solve(a, b), BATCH, normal(9, 2, 3))
_case("solve shared", lambda t, a, b: t.linalg.solve(a, b), BATCH, normal(9, 3, 2))
_case("solve from the right", lambda t, a, b: t.linalg.solve(a, b, left=False), BATCH, normal(9, 2, 2, 3))
_case("solve_triangular", lambda t, a, b: t.linalg.solve_triangular(a, b, upper=True), BATCH, normal(9, 2, 3, 2))
_case(
    "solve_triangular unit lower",
    lambda t, a, b: t.linalg.solve_triangular(a, b, upper=False, unitriangular=True),
    BATCH,
    normal(9, 2, 3, 2),
)
_case("cholesky", lambda t, a: t.linalg.cholesky(_symmetric(a)), POSITIVE)
_case("cholesky upper", lambda t, a: t.linalg.cholesky(_symmetric(a), upper=True), POSITIVE)
_case(
    "cholesky_solve",
    lambda t, b, a: t.cholesky_solve(b, t.linalg.cholesky(_symmetric(a))),
    normal(10, 2, 3, 2),
    POSITIVE,
)
_case("cholesky_inverse", lambda t, a: t.cholesky_inverse(t.linalg.cholesky(_symmetric(a))), POSITIVE)
for _label, _matrix in {"tall": TALL, "wide": WIDE, "square": BATCH}.items():
    _case(f"qr {_label}", lambda t, a: t.linalg.qr(a), _matrix)
    _case(f"svd {_label}", lambda t, a: [x * x for x in t.linalg.svd(a, full_matrices=False)], _matrix, tolerance=1e-9)
    _case(f"svd values {_label}", lambda t, a: t.linalg.svd(a)[1], _matrix, tolerance=1e-9, twice=_label == "square")
    _case(f"svdvals {_label}", lambda t, a: t.linalg.svdvals(a), _matrix, tolerance=1e-9)
    _case(f"pinv {_label}", lambda t, a: t.linalg.pinv(a), _matrix, tolerance=1e-9)
    _case(f"matrix_rank {_label}", lambda t, a: t.linalg.matrix_rank(a), _matrix, twice=False)
    for _order in ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")):
        _case(
            f"matrix_norm {_order} {_label}", lambda t, a, o=_order: t.linalg.matrix_norm(a, o), _matrix, tolerance=1e-9
        )
        _case(
            f"matrix_norm {_order} kept {_label}",
            lambda t, a, o=_order: t.linalg.matrix_norm(a, o, (0, 2), True),
            _matrix,
            tolerance=1e-9,
        )
_case("qr complete of a square", lambda t, a: t.linalg.qr(a, mode="complete"), BATCH)
_case("pinv deficient", lambda t, a: t.linalg.pinv(a, rtol=1e-6), DEFICIENT, tolerance=1e-8, twice=False)
_case("lstsq", lambda t, a, b: t.linalg.lstsq(a, b).solution * 1.0, TALL, normal(11, 2, 5, 2), tolerance=1e-9)
_case("eigh", lambda t, a: [x * x for x in t.linalg.eigh(_symmetric(a))], BATCH, tolerance=1e-9)
_case("eigh values", lambda t, a: t.linalg.eigh(_symmetric(a))[0], BATCH, tolerance=1e-9)
_case("eigvalsh upper", lambda t, a: t.linalg.eigvalsh(_symmetric(a), "U"), POSITIVE, tolerance=1e-9)
_case("eigvalsh of a triangle", lambda t, a: t.linalg.eigvalsh(a), BATCH, tolerance=1e-9, twice=False)
_case("cond", lambda t, a: t.linalg.cond(a), BATCH, tolerance=1e-9)
_case(
    "multi_dot", lambda t, a, b, c: t.linalg.multi_dot([a, b, c]), normal(12, 2, 5), normal(13, 5, 3), normal(14, 3, 4)
)
_case(
    "multi_dot vectors",
    lambda t, a, b, c: t.linalg.multi_dot([a, b, c]),
    normal(12, 5),
    normal(13, 5, 3),
    normal(14, 3),
)
_case("cross", lambda t, a, b: t.linalg.cross(a, b), normal(15, 4, 3), normal(16, 4, 3))
_case("cross dim 0", lambda t, a, b: t.cross(a, b, dim=0), normal(15, 3, 4), normal(16, 3, 4))
_case("vecdot", lambda t, a, b: t.linalg.vecdot(a, b), normal(15, 4, 3), normal(16, 4, 3))
_case("tensorinv", lambda t, a: t.linalg.tensorinv(a, ind=1), normal(17, 6, 2, 3))
_case("trace", lambda t, a: a.trace(), normal(18, 3, 4))

_WITH_ZEROS = normal(19, 3, 4)
_WITH_ZEROS[1] = 0
for _order in (2, 1, 0, 3, 0.5, float("inf"), -float("inf")):
    for _label, _axes in {"all": None, "rows": 1, "columns kept": 0}.items():
        _case(
            f"vector_norm {_order} {_label}",
            lambda t, x, o=_order, d=_axes, k="kept" in _label: t.linalg.vector_norm(x, o, d, k),
            normal(20, 3, 4),
            twice=_order != 0,
        )
    if _order > 0.5 and _order < 100:
        _case(f"norm {_order} of zeros", lambda t, x, o=_order: t.norm(x, o, 1), _WITH_ZEROS, twice=False)
_case("norm", lambda t, x: t.norm(x), normal(20, 3, 4))
_case("norm of a slice", lambda t, x: x[:, ::2].norm(), normal(20, 3, 4))
_case("norm nuc", lambda t, x: t.norm(x, "nuc"), normal(20, 3, 4), tolerance=1e-9)
_case(
    "linalg.norm",
    lambda t, x: [t.linalg.norm(x), t.linalg.norm(x, 1), t.linalg.norm(x, 3, 0), t.linalg.norm(x, "fro", (0, 1))],
    normal(20, 3, 4),
)
for _p in (1.0, 2.0, 3.0, float("inf")):
    _case(
        f"cdist {_p}",
        lambda t, a, b, p=_p: t.cdist(a, b, p, compute_mode="donot_use_mm_for_euclid_dist"),
        normal(21, 2, 4, 3),
        normal(22, 2, 5, 3),
        twice=False,
    )
_case("pdist", lambda t, a: t.pdist(a), normal(23, 4, 3), twice=False)

_EQUATIONS = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,jk->ki": ((2, 3), (3, 4)),
    "ij,kj": ((2, 3), (4, 3)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bhid,bhjd->bhij": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "bqc,bkc->bkq": ((2, 3, 4), (2, 5, 4)),
    "bhwc,ck->bhwk": ((2, 2, 3, 4), (4, 5)),
    "...ij,...jk->...ik": ((2, 3, 4), (4, 5)),
    "i...,i...->...": ((3, 2, 4), (3, 1, 4)),
    "i,j->ij": ((3,), (4,)),
    "i,i->": ((3,), (3,)),
    "ii->i": ((3, 3),),
    "ii": ((3, 3),),
    "iij->j": ((3, 3, 2),),
    "ij->ji": ((2, 3),),
    "ij->": ((2, 3),),
    "ij,ij->ij": ((2, 3), (2, 3)),
    "ij,j->i": ((2, 3), (3,)),
    "ijk,k->ij": ((2, 3, 4), (4,)),
    "abc,cd,de->aeb": ((2, 3, 4), (4, 5), (5, 2)),
    "ab,b,bc->ac": ((2, 3), (3,), (3, 4)),
    "nchw,kc->nkhw": ((2, 3, 2, 2), (4, 3)),
    "bn,anm,bm->ba": ((2, 3), (5, 3, 4), (2, 4)),
    "ij,k->": ((2, 3), (4,)),
    "bij,bjk->bki": ((1, 2, 3), (2, 3, 4)),
    "bij,bjk->ik": ((1, 2, 3), (2, 3, 4)),
}
for _equation, _shapes in _EQUATIONS.items():
    _arrays = [normal(30 + i, *shape) for i, shape in enumerate(_shapes)]
    _case(f"einsum {_equation}", lambda t, *tensors, e=_equation: t.einsum(e, *tensors), *_arrays)
_case("einsum lists", lambda t, a, b: t.einsum(a, [0, 1], b, [1, 2], [2, 0]), normal(30, 2, 3), normal(31, 3, 4))
_case("tensordot", lambda t, a, b: t.tensordot(a, b, 2), normal(32, 2, 3, 4), normal(33, 3, 4, 5))
_case("tensordot axes", lambda t, a, b: t.tensordot(a, b, ([2, 0], [0, 1])), normal(32, 2, 3, 4), normal(33, 4, 2, 5))
_case("inner", lambda t, a, b: t.inner(a, b), normal(34, 2, 3), normal(35, 4, 5, 3))
_case("vdot", lambda t, a, b: t.vdot(a, b), normal(34, 3), normal(35, 3))
_case("ger", lambda t, a, b: t.ger(a, b), normal(34, 3), normal(35, 4))
_case("kron", lambda t, a, b: t.kron(a, b), normal(34, 2, 3), normal(35, 4, 1, 2))
_case("addmv", lambda t, x, a, v: t.addmv(x, a, v, beta=0.5, alpha=2), normal(36, 2), normal(37, 2, 3), normal(38, 3))
_case("addr", lambda t, x, a, b: t.addr(x, a, b, beta=0.5, alpha=2), normal(36, 2, 3), normal(37, 2), normal(38, 3))
_case(
    "addbmm",
    lambda t, x, a, b: t.addbmm(x, a, b, beta=0.5, alpha=2),
    normal(36, 3, 5),
    normal(37, 2, 3, 4),
    normal(38, 2, 4, 5),
)
_case("cov", lambda t, x: t.cov(x), normal(39, 3, 6))
_case("cov of a vector", lambda t, x: t.cov(x, correction=0), normal(39, 6))
_case("corrcoef", lambda t, x: t.corrcoef(x), normal(39, 3, 6))
