"""Functions that PyTorch keeps beside their successors in `torch.linalg`, with arguments of their own."""

from typing import NamedTuple

from engine import linalg
from engine.calls.listening import heard
from engine.ops.pointwise.complex_numbers import conj
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
