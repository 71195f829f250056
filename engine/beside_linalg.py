"""Functions that PyTorch keeps beside their successors in `torch.linalg`, with arguments of their own."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from engine import linalg
from engine.calls.listening import heard
from engine.ops.pointwise.complex_numbers import conj
from engine.ops.reduce.norms import vector_norm
from engine.ops.reduce.operator import Dims
from engine.ops.writing.out import deliver
from engine.tensor import Tensor


class SVD(NamedTuple):
    """What `svd` returns; V is not transposed."""

    U: Tensor
    S: Tensor
    V: Tensor


@heard
def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> SVD:
    """U, S, V with input = U diag(S) Vᴴ. Without `compute_uv` U and V are zeros."""
    if not compute_uv:
        rows, columns = input.shape[-2:]
        zeros = (input.new_zeros((*input.shape[:-2], size, size)) for size in (rows, columns))
        left, right = zeros
        return SVD(left, linalg.svdvals(input), right)
    u, s, vh = linalg.svd(input, full_matrices=not some)
    return SVD(u, s, conj(vh).transpose(-2, -1))


@heard
def qr(input: Tensor, some: bool = True) -> linalg.QR:
    """Q and R; a square Q unless `some`."""
    return linalg.qr(input, "reduced" if some else "complete")


@heard
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """`linalg.cholesky`."""
    return linalg.cholesky(input, upper=upper)


@heard
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """`linalg.lu_solve` with the right-hand side first."""
    return linalg.lu_solve(LU_data, LU_pivots, b)


@heard
def norm(
    input: Tensor,
    p: Any = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """p-norm of the elements over axes ("fro": 2; "nuc": of the singular values of matrices)."""
    if out is not None:
        return deliver(out, norm, input, p, dim, keepdim, dtype=dtype)
    if p == "nuc":
        axes = tuple(dim) if dim is not None and not isinstance(dim, int) else (-2, -1)
        return linalg.matrix_norm(input, "nuc", axes, keepdim, dtype=dtype)
    if isinstance(p, str) and p != "fro":
        raise RuntimeError(f"norm: expected p to be a number, 'fro' or 'nuc', got {p!r}")
    return vector_norm(input, 2.0 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


@heard
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, in the cheapest order."""
    given = matrices[0] if len(matrices) == 1 and isinstance(matrices[0], Sequence) else matrices
    return given[0] if len(given) == 1 else linalg.multi_dot(given)
