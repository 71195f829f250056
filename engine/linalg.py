"""`engine.linalg`: linear algebra with PyTorch's names (torch.linalg). Operators with derivatives are in
`engine.ops.linalg.solving` and `engine.ops.linalg.decompositions`; the rest is composed here.

Matrices in single and double precision, real or complex; leading axes are batches. A matrix that cannot be inverted or
factorised raises `LinAlgError`, a RuntimeError.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.memory import backend
from engine.ops.copy.operator import lay_out
from engine.ops.creation.factories import eye
from engine.ops.index.operator import wrap_device_array
from engine.ops.linalg import decompositions, solving
from engine.ops.linalg.lu import LU_FACTOR, permutation
from engine.ops.linalg.lu import lu_factor as _lu_factor
from engine.ops.linalg.solving import LinAlgError as LinAlgError
from engine.ops.linalg.solving import cholesky as cholesky
from engine.ops.linalg.solving import det as det
from engine.ops.linalg.solving import inv as inv
from engine.ops.linalg.solving import solve as solve
from engine.ops.matmul.einsum import vector_product
from engine.ops.matmul.operator import matmul as matmul
from engine.ops.pointwise.selection import constant_beside, where
from engine.ops.reduce.norms import vector_norm as vector_norm
from engine.ops.shape.combine import cat, tril, triu
from engine.ops.shape.composed import diag_embed
from engine.ops.views.parts import diagonal as _diagonal
from engine.ops.writing.taking_out import wrapped as _wrapped
from engine.rules import dtypes
from engine.rules.dims import wrap_dim
from engine.rules.layout import contiguous_format
from engine.tensor import Tensor


def _eye(like: Tensor, rows: int, columns: int | None = None) -> Tensor:
    return eye(rows, columns, dtype=like.dtype, device=like.device)


class QR(NamedTuple):
    """What `qr` returns."""

    Q: Tensor
    R: Tensor


class Eigh(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class Eig(NamedTuple):
    """What `eig` returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class LUFactor(NamedTuple):
    """What `lu_factor` returns."""

    LU: Tensor
    pivots: Tensor


class LU(NamedTuple):
    """What `lu` returns."""

    P: Tensor
    L: Tensor
    U: Tensor


class SVD(NamedTuple):
    """What `svd` returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class SlogDet(NamedTuple):
    """What `slogdet` returns."""

    sign: Tensor
    logabsdet: Tensor


class LeastSquares(NamedTuple):
    """What `lstsq` returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def slogdet(A: Tensor) -> SlogDet:
    """The determinant's sign and the logarithm of its absolute value."""
    return SlogDet(*apply(solving.SLOGDET, (A,)))


def logdet(A: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where it is negative."""
    sign, logarithm = slogdet(A)
    return sign.log() + logarithm if A.is_complex() else where(sign < 0, float("nan"), logarithm)


@heard
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and upper triangular R, A = Q R; `mode` "complete" gives a square Q, "r" only R."""
    return QR(*apply(decompositions.QR, (A,), (mode,)))


@heard
def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """Eigenvalues, ascending, and orthonormal eigenvectors of a symmetric matrix, of which one triangle is read."""
    if UPLO.upper() not in ("L", "U"):
        raise RuntimeError(f"Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return Eigh(*apply(decompositions.EIGH, (A,), (UPLO.upper(),)))


@heard
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of a symmetric matrix, ascending."""
    return eigh(A, UPLO)[0]


@heard
def eig(A: Tensor) -> Eig:
    """Complex eigenvalues and eigenvectors of length 1 of a square matrix. The derivative needs distinct eigenvalues
    and a loss that does not depend on the phases of the vectors.
    """
    return Eig(*apply(decompositions.EIG, (A,)))


@heard
def eigvals(A: Tensor) -> Tensor:
    """The complex eigenvalues of a square matrix."""
    return eig(A)[0]


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of a square matrix, by a Padé approximant of degree 13 of A / 2^s, squared s times (N. Higham,
    "The scaling and squaring method for the matrix exponential revisited", 2005).
    """
    solving.check_matrix("linalg.matrix_exp", A._spec, square=True)
    if not A.numel():
        return A.clone()
    size = float(matrix_norm(A.detach(), 1).amax()) if A.device.type != "meta" else 0.0
    halvings = max(0, math.ceil(math.log2(size / 5.37))) if 0 < size < math.inf else 0
    A = A * 0.5**halvings if halvings else A
    unit = _eye(A, A.shape[-1])
    b = [math.factorial(26 - k) * math.factorial(13) / math.factorial(26) / math.factorial(13 - k) for k in range(14)]
    b = [value / math.factorial(k) for k, value in enumerate(b)]
    a2 = matmul(A, A)
    a4 = matmul(a2, a2)
    a6 = matmul(a4, a2)
    u = matmul(A, matmul(a6, a6 * b[13] + a4 * b[11] + a2 * b[9]) + a6 * b[7] + a4 * b[5] + a2 * b[3] + unit * b[1])
    v = matmul(a6, a6 * b[12] + a4 * b[10] + a2 * b[8]) + a6 * b[6] + a4 * b[4] + a2 * b[2] + unit * b[0]
    result = solve(v - u, v + u)
    for _ in range(halvings):
        result = matmul(result, result)
    return result


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The Vandermonde matrix: powers 0 ... N - 1 of each element along a new last axis."""
    if x.dtype.category == 0:
        raise RuntimeError(f"linalg.vander supports floating point, complex, and integer tensors, but got {x.dtype}")
    x = x if x.ndim else x.unsqueeze(0)
    size = x.shape[-1] if N is None else N
    if size < 2:
        raise RuntimeError(f"N must be greater than 1, got {size}")
    return cat([x.new_ones((*x.shape, 1)), x.unsqueeze(-1).expand((*x.shape, size - 1)).cumprod(-1)], -1)


@heard
def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """U, S, Vh with A = U diag(S) Vh, S descending. Derivatives of U and Vh need `full_matrices=False` or a square
    matrix.
    """
    return SVD(*apply(decompositions.SVD, (A,), (bool(full_matrices),)))


@heard
def svdvals(A: Tensor) -> Tensor:
    """The singular values, descending."""
    return svd(A, full_matrices=False)[1]


@heard
def pinv(
    A: Tensor,
    rcond: float | None = None,
    hermitian: bool = False,
    *,
    atol: float | None = None,
    rtol: float | None = None,
) -> Tensor:
    """The Moore-Penrose inverse; singular values below max(atol, rtol times the largest) count as 0. `rcond` is an
    older name of rtol. With `hermitian`, A is taken for symmetric, and of it the lower triangle is read.
    """
    rtol = rcond if rtol is None else rtol
    if hermitian:
        solving.check_matrix("linalg.pinv", A._spec, square=True)
        lower = tril(A, -1)
        diagonals = _diagonal(A, 0, -2, -1)
        A = lower + lower.mH + diag_embed(diagonals.real if A.is_complex() else diagonals).to(A.dtype)
    if rtol is None:
        rtol = 0.0 if atol else max(A.shape[-2:], default=1) * dtypes.finfo(A.dtype.to_real()).eps
    return apply(decompositions.PINV, (A,), (float(rtol), float(atol or 0.0)))


@heard
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """X that minimises the Frobenius norm of A X - B, the residuals, the rank and the singular values.

    The solution is the pseudo-inverse's, whatever the LAPACK driver; that says what comes with it, and what does not
    is empty: "gelsy" (the default) gives ranks; "gels" residuals; "gelsd" and "gelss" both, and singular values. The
    first two results have derivatives. Residuals are those of full-rank A with more rows than columns. Raises:
    RuntimeError for other drivers.
    """
    driver = driver or "gelsy"
    if driver not in ("gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            f"linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver!r}"
        )
    vector = B.ndim == A.ndim - 1
    right = B.unsqueeze(-1) if vector else B
    solution = matmul(pinv(A, rtol=rcond), right)
    solution = lay_out(solution, solving.column_major(solution._spec, tuple(solution.shape)).stride)
    ranks = matrix_rank(A.detach(), rtol=rcond)
    rows, columns = A.shape[-2:]
    values = A.new_empty(0, dtype=A.dtype.to_real())
    if driver != "gelsy" and rows > columns and bool((ranks == columns).all()):
        residuals = (matmul(A, solution) - right).abs().square().sum(-2)
    else:  # differentiable as the solution is
        residuals = solution.reshape(-1)[:0].real.clone()
    if driver in ("gelsd", "gelss"):
        values = svdvals(A.detach())
    if driver == "gels":
        ranks = A.new_empty(0, dtype=dtypes.int64)
    return LeastSquares(solution.squeeze(-1) if vector else solution, residuals, ranks, values)


def lu_factor(A: Tensor, *, pivot: bool = True) -> LUFactor:
    """Both factors of A = P L U in one matrix, and which rows were exchanged, counted from 1.

    Raises: LinAlgError where A is singular; NotImplementedError without pivoting.
    """
    return LUFactor(*_lu_factor(A, pivot=pivot))


def lu(A: Tensor, *, pivot: bool = True) -> LU:
    """P, L, U with A = P L U: a permutation, a unit lower and an upper triangle."""
    if not pivot:
        raise NotImplementedError("linalg.lu: LU without pivoting is not implemented")
    return lu_unpack(*apply(LU_FACTOR, (A,)))


def lu_unpack(LU_data: Tensor, LU_pivots: Tensor) -> LU:
    """P, L, U from what `lu_factor` gives."""
    rows, columns = LU_data.shape[-2:]
    inner = min(rows, columns)
    xp = backend.array_module(LU_pivots.device)
    places = permutation(xp, LU_pivots.detach()._array, rows).argsort(-1)
    permuted = _eye(LU_data, rows)[wrap_device_array(places, LU_pivots)]
    lower = tril(LU_data[..., :, :inner], -1) + _eye(LU_data, rows, inner)
    return LU(permuted, lower, triu(LU_data[..., :inner, :]))


def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """X with A X = B (X A = B unless `left`; Aᴴ instead of A with `adjoint`), given `lu_factor(A)`."""
    P, L, U = lu_unpack(LU, pivots)
    A = matmul(P, matmul(L, U))
    return solve(A.mH if adjoint else A, B, left=left)


@heard
def inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """(the inverse, 0 for each matrix). Raises: LinAlgError for a singular matrix, `check_errors` or not."""
    return inv(A), A.new_zeros(A.shape[:-2], dtype=dtypes.int32)


@heard
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """(the factor, 0 for each matrix). Raises: LinAlgError where A is not positive-definite."""
    return cholesky(A, upper=upper), A.new_zeros(A.shape[:-2], dtype=dtypes.int32)


@heard
def matrix_rank(A: Tensor, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Tensor:
    """How many singular values exceed max(atol, rtol * the largest)."""
    values = svdvals(A.detach())
    if not values.shape[-1]:
        return A.new_zeros(A.shape[:-2], dtype=dtypes.int64)
    if rtol is None:
        rtol = max(A.shape[-2:]) * dtypes.finfo(A.dtype).eps if not atol else 0.0
    limit = (values.amax(-1, keepdim=True) * rtol).clamp(min=atol or 0.0)
    return (values > limit).sum(-1)


@heard
def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number with respect to a matrix norm (2 by default)."""
    if p in (None, 2, -2):
        values = svdvals(A)
        return values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
    return matrix_norm(A, p) * matrix_norm(inv(A), p)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """X with A X = B (X A = B unless `left`), reading one triangle of A, with a unit diagonal if asked for."""
    solving.check_matrix("linalg.solve_triangular", A._spec, square=True)
    kept = (triu if upper else tril)(A, (1 if upper else -1) if unitriangular else 0)
    if unitriangular:
        kept = kept + _eye(A, A.shape[-1])
    return solve(kept, B, left=left)


@heard
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """X with A X = B, given A's Cholesky factor."""
    return solve(_from_factor(L, upper), B)


@heard
def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of A, given its Cholesky factor."""
    return inv(_from_factor(L, upper))


def _from_factor(L: Tensor, upper: bool) -> Tensor:
    solving.check_matrix("cholesky_solve", L._spec, square=True)
    L = solving.factor(L, upper)
    turned = L.mH
    return matmul(turned, L) if upper else matmul(L, turned)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A multiplied n times with itself; of its inverse for negative n."""
    solving.check_matrix("linalg.matrix_power", A._spec, square=True)
    if n < 0:
        return inv(A) if n == -1 else matrix_power(inv(A), -n)
    if n == 0:
        return constant_beside(_eye(A, A.shape[-1]).expand(A.shape).clone(), A)
    if n == 1:
        return A.clone(memory_format=contiguous_format)
    half = matrix_power(A, n // 2) if n > 3 else A
    square = matmul(half, half)
    return matmul(square, A) if n & 1 else square


@heard
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices (the first and last may be vectors), in the cheapest order."""
    given = list(tensors)
    if len(given) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(given)}")
    first_vector, last_vector = given[0].ndim == 1, given[-1].ndim == 1
    if first_vector:
        given[0] = given[0].unsqueeze(0)
    if last_vector:
        given[-1] = given[-1].unsqueeze(-1)
    for position, each in enumerate(given):
        if each.ndim != 2:
            raise RuntimeError(f"multi_dot(): tensor {position} must be 2D but got {each.ndim}D")
    result = _in_cheapest_order(given)
    if first_vector:
        result = result.squeeze(0)
    return result.squeeze(-1) if last_vector else result


def _in_cheapest_order(given: list[Tensor]) -> Tensor:
    """Matrix-chain multiplication by dynamic programming."""
    sizes = [given[0].shape[0], *(each.shape[1] for each in given)]
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(len(given))}
    for length in range(1, len(given)):
        for low in range(len(given) - length):
            high = low + length
            best[low, high] = min(
                (best[low, cut][0] + best[cut + 1, high][0] + sizes[low] * sizes[cut + 1] * sizes[high + 1], cut)
                for cut in range(low, high)
            )

    def product(low: int, high: int) -> Tensor:
        if low == high:
            return given[low]
        cut = best[low, high][1]
        return matmul(product(low, cut), product(cut + 1, high))

    return product(0, len(given) - 1)


@heard
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The vector product along an axis of size 3; other axes broadcast."""
    return vector_product(input, other, dim)


@heard
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """Dot products along an axis; other axes broadcast."""
    return ((x.conj() if x.is_complex() else x) * y).sum(dim)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals, as a view."""
    return _diagonal(A, offset, dim1, dim2)


@heard
def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """A norm of matrices in two axes: "fro", "nuc", inf, -inf, 1, -1, 2, -2.

    Raises: RuntimeError for another order or fewer than two axes.
    """
    if dtype is not None:
        A = A.to(dtype)
    if A.ndim < 2 or len(dim) != 2:
        raise RuntimeError(
            "linalg.matrix_norm: The input tensor A must have at least 2 dimensions and dim two axes, got shape "
            f"{list(A.shape)} and {dim}"
        )
    rows, columns = (wrap_dim(axis, A.ndim, "linalg.matrix_norm") for axis in dim)
    if rows == columns:
        raise RuntimeError(f"linalg.matrix_norm: dims must be different. Got {list(dim)}")
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        values = svdvals(A.movedim((rows, columns), (-2, -1)))
        result = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
        return result.unsqueeze(-1).unsqueeze(-1).movedim((-2, -1), (rows, columns)) if keepdim else result
    if ord in (1, -1, float("inf"), -float("inf")):
        sums = A.abs().sum(rows if abs(ord) == 1 else columns, True)
        return (sums.amax if ord > 0 else sums.amin)((rows, columns), keepdim)
    raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")


@heard
def norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A vector norm over `dim` (all axes without it and without an order), or a matrix norm over two axes."""
    axes = (dim,) if isinstance(dim, int) else dim
    if ord is None or (
        not isinstance(ord, str) and ((axes is not None and len(axes) == 1) or (axes is None and A.ndim == 1))
    ):
        return vector_norm(A, 2 if ord is None else ord, axes, keepdim, dtype=dtype)
    return matrix_norm(A, ord, (-2, -1) if axes is None else axes, keepdim, dtype=dtype)


@heard
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse with respect to tensordot over the first `ind` axes."""
    rows, columns = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    return inv(A.reshape(math.prod(rows), -1)).reshape(*columns, *rows)


@heard
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; `dims` are axes of A that are moved to its end first.

    Raises: RuntimeError where A is no square matrix of B's elements.
    """
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    if A.numel() != B.numel() ** 2:
        raise RuntimeError(
            f"Expected self to satisfy the requirement prod(self.shape[other.ndim:]) == prod(self.shape[:other.ndim]) "
            f"== {B.numel()}, got shape {list(A.shape)}"
        )
    shape = tuple(A.shape[B.ndim :])
    return solve(A.reshape(B.numel(), -1), B.reshape(-1)).reshape(shape)


globals().update(_wrapped("engine.linalg", globals()))
