"""Samples of matrix products and linear algebra."""

import numpy as np

import engine
import engine.linalg
from tests.op_samples.table import Array, add, draw, raw

for _name, _first, _second in [
    ("dot", (3,), (3,)),
    ("dot", (0,), (0,)),
    ("mv", (2, 3), (3,)),
    ("mv", (0, 3), (3,)),
    ("bmm", (5, 2, 3), (5, 3, 4)),
    ("bmm", (5, 1, 2, 3), (2, 3, 4)),
    ("bmm", (5, 2, 3), (3, 4)),
    ("bmm", (5, 2, 3), (3,)),
    ("bmm", (3,), (5, 3, 4)),
    ("bmm", (0, 2, 3), (0, 3, 4)),
]:
    add(_name, raw(_name), draw(*_first), draw(*_second), reference=np.matmul)
for _first, _second in [((2, 3), (3, 4)), ((0, 3), (3, 2)), ((2, 0), (0, 3))]:
    add("mm", raw("mm", False), draw(*_first), draw(*_second), reference=np.matmul)
for _beta, _alpha in [(1, 1), (0.5, 2.0), (0, 1)]:
    for _shape in [(2, 4), (4,), (2, 1)]:
        add(
            "addmm",
            raw("addmm", _beta, _alpha, False),
            *(draw(*_shape), draw(2, 3), draw(3, 4)),
            reference=lambda x, a, b, beta=_beta, alpha=_alpha: beta * x + alpha * (a @ b),
        )
    add(
        "baddbmm",
        raw("baddbmm", _beta, _alpha),
        *(draw(2, 4), draw(5, 2, 3), draw(5, 3, 4)),
        reference=lambda x, a, b, beta=_beta, alpha=_alpha: beta * x + alpha * (a @ b),
    )
add("addmm", raw("addmm", 1, 1, False), draw(0, 4), draw(0, 3), draw(3, 4), reference=lambda x, a, b: x + a @ b)
add("baddbmm", raw("baddbmm", 1, 1), draw(4), draw(0, 2, 3), draw(0, 3, 4), reference=lambda x, a, b: x + a @ b)
for _shape in [(2, 3), (3,), (2, 2, 3), (0, 3)]:
    add("addmm", raw("addmm", 1, 1, True), draw(4), draw(*_shape), draw(4, 3), reference=lambda b, x, w: x @ w.T + b)
    add("mm", raw("mm", True), draw(*_shape), draw(4, 3), reference=lambda x, w: x @ w.T)


def _definite(*shape: int) -> Array:
    factor = draw(*shape)
    return factor @ factor.swapaxes(-1, -2) + 2 * np.eye(shape[-1])


_SQUARE = draw(2, 3, 3) + 2 * np.eye(3)
add("linalg_inv", engine.linalg.inv, _SQUARE, reference=np.linalg.inv)
add("linalg_det", engine.linalg.det, _SQUARE, reference=np.linalg.det)
add("linalg_slogdet", raw("linalg_slogdet"), _SQUARE, reference=lambda x: tuple(np.linalg.slogdet(x)))
add("linalg_solve", engine.linalg.solve, _SQUARE, draw(2, 3, 2), reference=np.linalg.solve)
add("linalg_factor", lambda x: raw("linalg_factor", False)(x.tril()), draw(2, 3, 3), reference=np.tril)
add("linalg_factor", lambda x: raw("linalg_factor", True)(x.triu()), draw(3, 3), reference=np.triu)
add("linalg_pinv", engine.linalg.pinv, draw(4, 3), reference=np.linalg.pinv)
add("linalg_pinv", lambda x: engine.linalg.pinv(x, atol=1e-3), draw(4, 3), reference=np.linalg.pinv)
add(
    "linalg_cholesky",
    lambda x: engine.linalg.cholesky(x + x.mT),
    _definite(2, 3, 3) / 2,
    reference=lambda x: np.linalg.cholesky(x + x.swapaxes(-1, -2)),
)
add("linalg_qr", lambda x: tuple(engine.linalg.qr(x)), draw(4, 3))
# Eigenvectors and singular vectors are determined up to their sign (phase): absolute values are.
add(
    "linalg_eigh",
    lambda x: (lambda r: (r[0], r[1].abs()))(engine.linalg.eigh(x + x.mT)),
    np.diag([1.0, 2.5, 4.0]) + 0.1 * draw(3, 3),
    reference=lambda x: (np.linalg.eigh(x + x.T)[0], np.abs(np.linalg.eigh(x + x.T)[1])),
)
add(
    "linalg_svd",
    lambda x: (lambda r: (r[0].abs(), r[1], r[2].abs()))(engine.linalg.svd(x, full_matrices=False)),
    np.eye(4, 3) * [3.0, 2.0, 1.0] + 0.1 * draw(4, 3),
    reference=lambda x: tuple(np.abs(part) for part in np.linalg.svd(x, full_matrices=False)),
)
