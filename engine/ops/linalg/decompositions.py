"""Factorisations of matrices (batches in the leading axes): qr, eigh, svd, and pinv, with derivatives. Factors are
column-major, as LAPACK leaves them.

Derivative rules: M. Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008); for svd and qr
of non-square matrices J. Townsend (2016) and H.-J. Liao et al. (2019); for pinv Golub and Pereyra (1973).
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.operator import define
from engine.ops.linalg.solving import adjoint, check_matrix, column_major, guarded
from engine.ops.shared.operands import conjugate, in_host_memory
from engine.rules.dtypes import complex64, complex128, float32
from engine.rules.spec import Spec


def _eye(nd: Any, like: Any) -> Any:
    """The identity of the size of a last axis."""
    return nd.eye_like(like)


# --- qr ---------------------------------------------------------------------------------------------------------------


def _qr_rule(input: Spec, mode: str) -> tuple[Spec, Spec]:
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    check_matrix("linalg.qr", input)
    *batch, rows, columns = input.shape
    inner = rows if mode == "complete" else min(rows, columns)
    q = input.like(shape=(0,)) if mode == "r" else column_major(input, (*batch, rows, inner))
    return q, column_major(input, (*batch, inner, columns))


def _qr(xp: ModuleType, input: Any, mode: str) -> Any:
    if mode == "r":
        return xp.empty(0, input.dtype), xp.linalg.qr(input, "r")
    return tuple(xp.linalg.qr(input, mode))


def _qr_slope(g: Any, nd: Any, out: Any, mode: str) -> Any:
    if mode == "r":
        raise RuntimeError(
            "The derivative of linalg.qr depends on Q, which is not computed when mode='r'; use mode='reduced'"
        )
    of_q, of_r = g
    q, r = out
    if q.shape[-1] > r.shape[-1]:
        raise RuntimeError("The QR decomposition is not differentiable when mode='complete' and nrows > ncols")
    size = q.shape[-1]
    right = None
    if r.shape[-1] > size:  # wide: A = [X Y], the factors of X, and Y = Q V
        right = r[..., :, size:]
        of_right = None if of_r is None else of_r[..., :, size:]
        r = r[..., :, :size]
        if of_right is not None:
            of_r = of_r[..., :, :size]
            extra = nd.matmul(nd.matmul(q, right), adjoint(nd, of_right))
            of_q = extra if of_q is None else of_q + extra
    middle: Any = 0
    if of_r is not None:
        middle = nd.matmul(r, adjoint(nd, of_r))
    if of_q is not None:
        middle = middle - nd.matmul(adjoint(nd, of_q), q)
    lower = nd.tril(middle, 0)
    symmetric = (lower + adjoint(nd, lower)) * (1 - _eye(nd, middle) / 2)  # the real part of the diagonal
    total = nd.matmul(q, symmetric)
    if of_q is not None:
        total = total + of_q
    result = adjoint(nd, nd.linalg_solve(r, adjoint(nd, total)))
    if right is None:
        return (result,)
    beside = right * 0 if of_right is None else of_right
    parts = [result, nd.matmul(q, beside)]
    return (nd.cat(parts, -1),)


QR = define("linalg_qr", rule=_qr_rule, forward=_qr, backward=_qr_slope, attributes="mode", outputs=2)

# --- eigh -------------------------------------------------------------------------------------------------------------


def _eigh_rule(input: Spec, uplo: str) -> tuple[Spec, Spec]:
    check_matrix("linalg.eigh", input, square=True)
    values = input.like(shape=input.shape[:-1], dtype=input.dtype.to_real())
    return values, column_major(input, tuple(input.shape))


def _eigh(xp: ModuleType, input: Any, uplo: str) -> Any:
    return tuple(
        guarded(
            "linalg.eigh: The algorithm failed to converge because the input matrix is ill-conditioned",
            xp.linalg.eigh,
            input,
            uplo,
        )
    )


def _reciprocal_gaps(nd: Any, values: Any) -> Any:
    """1 / (v_j - v_i), 0 on the diagonal."""
    gaps = values[..., None, :] - values[..., :, None]
    eye = _eye(nd, values)
    return (1 - eye) / (gaps + eye)


def _refuse_phases(name: str, nd: Any, turning: Any) -> None:
    """Raises RuntimeError where a loss turns with the phases of complex vectors; on a GPU, where looking would wait for
    it, nothing is raised.
    """
    if not in_host_memory(turning):
        return
    raw = nd.array_of(turning)
    if raw.dtype.kind == "c" and not np.allclose(np.diagonal(raw, axis1=-2, axis2=-1).imag, 0, atol=1e-2):
        raise RuntimeError(
            f"{name}: The vectors in the complex case are specified up to multiplication by e^(i phi). The specified "
            "loss function depends on this quantity, so it is ill-defined: use .abs() of the vectors, or products that "
            "do not change with phi"
        )


def _eigh_slope(g: Any, nd: Any, out: Any) -> Any:
    of_values, of_vectors = g
    values, vectors = out
    middle: Any = 0
    if of_vectors is not None:
        turning = nd.matmul(adjoint(nd, vectors), of_vectors)
        _refuse_phases("linalg.eigh", nd, turning)
        middle = turning * _reciprocal_gaps(nd, values)
        middle = (middle + adjoint(nd, middle)) / 2  # the part of a symmetric matrix, as PyTorch has it
    transposed = adjoint(nd, vectors)
    result: Any = 0
    if of_vectors is not None:
        result = nd.matmul(vectors, nd.matmul(middle, transposed))
    if of_values is not None:
        result = result + nd.matmul(vectors * of_values[..., None, :], transposed)
    return (result,)


EIGH = define("linalg_eigh", rule=_eigh_rule, forward=_eigh, backward=_eigh_slope, attributes="uplo", outputs=2)

# --- svd, pinv --------------------------------------------------------------------------------------------------------


def _svd_rule(input: Spec, full: bool) -> tuple[Spec, Spec, Spec]:
    check_matrix("linalg.svd", input)
    *batch, rows, columns = input.shape
    inner = min(rows, columns)
    left, right = (rows, columns) if full else (inner, inner)
    return (
        column_major(input, (*batch, rows, left)),
        input.like(shape=(*batch, inner), dtype=input.dtype.to_real()),
        column_major(input, (*batch, right, columns)),
    )


def _svd(xp: ModuleType, input: Any, full: bool) -> Any:
    message = "linalg.svd: The algorithm failed to converge because the input matrix is ill-conditioned or contains NaN"
    return tuple(guarded(message, xp.linalg.svd, input, full_matrices=full))


def _antisymmetric(nd: Any, x: Any) -> Any:
    return x - adjoint(nd, x)


def _svd_slope(g: Any, nd: Any, out: Any, input_spec: Spec) -> Any:
    of_u, of_s, of_vh = g
    u, s, vh = out
    size = s.shape[-1]
    # What completes the bases of a matrix that is not square is arbitrary: as in PyTorch, nothing comes back from it.
    u, vh = u[..., :, :size], vh[..., :size, :]
    of_u = None if of_u is None else of_u[..., :, :size]
    of_vh = None if of_vh is None else of_vh[..., :size, :]
    gaps = _reciprocal_gaps(nd, s * s)
    middle: Any = 0
    if of_u is not None:
        turning = _antisymmetric(nd, nd.matmul(adjoint(nd, u), of_u))
        middle = turning * gaps * s[..., None, :]
        if input_spec.dtype.is_complex:  # phases of the singular vectors, which a loss must not depend on
            middle = middle + turning * _eye(nd, turning) / (2 * s[..., None, :])
    if of_vh is not None:
        middle = middle + s[..., :, None] * (_antisymmetric(nd, nd.matmul(vh, adjoint(nd, of_vh))) * gaps)
    result: Any = 0
    if of_u is not None or of_vh is not None:
        result = nd.matmul(u, nd.matmul(middle, vh))
    if of_s is not None:
        result = result + nd.matmul(u * of_s[..., None, :], vh)
    if of_u is not None and u.shape[-2] > size:
        outside = of_u - nd.matmul(u, nd.matmul(adjoint(nd, u), of_u))
        result = result + nd.matmul(outside / s[..., None, :], vh)
    if of_vh is not None and vh.shape[-1] > size:
        outside = of_vh - nd.matmul(nd.matmul(of_vh, adjoint(nd, vh)), vh)
        result = result + nd.matmul(u, outside / s[..., :, None])
    return (result,)


SVD = define("linalg_svd", rule=_svd_rule, forward=_svd, backward=_svd_slope, attributes="full", outputs=3)


def _identity_minus(nd: Any, x: Any) -> Any:
    return _eye(nd, x) - x


def _pinv_rule(input: Spec, rtol: float, atol: float) -> Spec:
    check_matrix("linalg.pinv", input)
    *batch, rows, columns = input.shape
    return input.like(shape=(*batch, columns, rows))


def _pinv(xp: ModuleType, input: Any, rtol: float, atol: float) -> Any:
    if not atol and xp is np:  # CuPy's waits for the GPU
        return xp.linalg.pinv(input, rtol)
    u, s, vh = xp.linalg.svd(input, full_matrices=False)
    kept = s > xp.maximum(rtol * s[..., :1], atol)  # the largest is the first
    inverse = xp.where(kept, 1 / xp.where(kept, s, 1), 0)
    return xp.matmul(xp.conj(vh.swapaxes(-1, -2)) * inverse[..., None, :], xp.conj(u.swapaxes(-1, -2)))


def _pinv_slope(g: Any, nd: Any, input: Any, out: Any) -> Any:
    transposed, of_rows = adjoint(nd, out), adjoint(nd, g)
    result = -nd.matmul(transposed, nd.matmul(g, transposed))
    left = _identity_minus(nd, nd.matmul(input, out))
    right = _identity_minus(nd, nd.matmul(out, input))
    result = result + nd.matmul(nd.matmul(left, of_rows), nd.matmul(out, transposed))
    return result + nd.matmul(nd.matmul(transposed, out), nd.matmul(of_rows, right))


PINV = define(
    "linalg_pinv",
    rule=_pinv_rule,
    forward=_pinv,
    backward=(_pinv_slope,),
    attributes="rtol atol",
)
for _operator in (QR, EIGH, SVD, PINV):
    _operator.analytic = False

# --- eig --------------------------------------------------------------------------------------------------------------


def _eig_rule(input: Spec) -> tuple[Spec, Spec]:
    check_matrix("linalg.eig", input, square=True)
    kind = input.dtype if input.dtype.is_complex else complex64 if input.dtype is float32 else complex128
    return input.like(shape=input.shape[:-1], dtype=kind), column_major(input, tuple(input.shape)).like(dtype=kind)


def _eig(xp: ModuleType, input: Any) -> Any:
    values, vectors = guarded("linalg.eig: The algorithm failed to converge", xp.linalg.eig, input)
    kind = xp.result_type(input.dtype, xp.complex64)
    return values.astype(kind), vectors.astype(kind)


def _eig_slope(g: Any, nd: Any, out: Any) -> Any:
    """Eigenvectors of length 1 have a phase that a loss must not depend on."""
    of_values, of_vectors = g
    values, vectors = out
    rows = adjoint(nd, vectors)
    middle: Any = 0
    if of_vectors is not None:
        inner = nd.matmul(rows, of_vectors)
        along = nd.real((inner * _eye(nd, inner)).sum(-2))
        inner = inner - nd.matmul(rows, vectors * along[..., None, :])
        middle = inner * conjugate(_reciprocal_gaps(nd, values), nd)
    if of_values is not None:
        middle = middle + of_values[..., None, :] * _eye(nd, vectors)
    return (nd.linalg_solve(rows, nd.matmul(middle, rows)),)


EIG = define("linalg_eig", rule=_eig_rule, forward=_eig, backward=_eig_slope, outputs=2)
EIG.analytic = False
