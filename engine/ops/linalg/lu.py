"""LU factorisation with partial pivoting, in the compact form of LAPACK's getrf: unit lower triangle and upper triangle
in one matrix, and the row each row was exchanged with, counted from 1.

Derivative: S. Axen, "Differentiating the LU decomposition" (2021).
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.namespaces import composite
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.linalg.solving import LinAlgError, adjoint, check_matrix, column_major
from engine.rules.dtypes import int32, int64
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _rule(input: Spec) -> tuple[Spec, Spec]:
    check_matrix("linalg.lu_factor", input)
    *batch, rows, columns = input.shape
    return column_major(input, tuple(input.shape)), input.like(shape=(*batch, min(rows, columns)), dtype=int32)


def _forward(xp: ModuleType, input: Any) -> tuple[Any, Any]:
    if xp is not np:
        return _all_at_once(xp, input)
    a = input.copy()
    *batch, rows, columns = a.shape
    pivots = xp.zeros((*batch, min(rows, columns)), np.int32)
    for index in np.ndindex(*batch):
        matrix = a[index]
        for k in range(min(rows, columns)):
            best = k + int(_size(xp, matrix[k:, k]).argmax())
            pivots[(*index, k)] = best + 1
            if best != k:
                matrix[[k, best]] = matrix[[best, k]]
            if matrix[k, k] != 0:
                matrix[k + 1 :, k] /= matrix[k, k]
                matrix[k + 1 :, k + 1 :] -= matrix[k + 1 :, k, None] * matrix[k, None, k + 1 :]
    return a, pivots


def _size(xp: ModuleType, x: Any) -> Any:
    """What LAPACK chooses pivots by: of complex numbers the sum of both parts."""
    return xp.abs(x.real) + xp.abs(x.imag) if x.dtype.kind == "c" else xp.abs(x)


def _all_at_once(xp: ModuleType, input: Any) -> tuple[Any, Any]:
    """The same, a step for all matrices, without looking at any element."""
    a = input.copy()
    *batch, rows, columns = a.shape
    pivots = xp.empty((*batch, min(rows, columns)), np.int32)
    for k in range(min(rows, columns)):
        best = k + _size(xp, a[..., k:, k]).argmax(axis=-1)[..., None]
        pivots[..., k : k + 1] = best + 1
        order = _exchanged(xp, xp.broadcast_to(xp.arange(rows), (*batch, rows)), k, best)
        a = xp.take_along_axis(a, order[..., None], -2)
        pivot = a[..., k, k, None]
        a[..., k + 1 :, k] /= xp.where(pivot == 0, 1, pivot)  # below a pivot of 0 there is nothing but 0
        a[..., k + 1 :, k + 1 :] -= a[..., k + 1 :, k, None] * a[..., k, None, k + 1 :]
    return a, pivots


def _exchanged(xp: ModuleType, order: Any, k: int, other: Any) -> Any:
    """`order` (..., rows) with the entries at k and at `other` (..., 1) exchanged."""
    places = xp.arange(order.shape[-1])
    there = xp.take_along_axis(order, other, -1)
    return xp.where(places == k, there, xp.where(places == other, order[..., k, None], order))


def permutation(xp: ModuleType, pivots: Any, rows: int) -> Any:
    """The order of the rows after the exchanges: (PᵀA)[i] = A[order[i]]."""
    order = xp.broadcast_to(xp.arange(rows), (*pivots.shape[:-1], rows))
    for k in range(pivots.shape[-1]):
        order = _exchanged(xp, order, k, pivots[..., k, None] - 1)
    return order


def _slope(g: Any, nd: Any, out: Any, input_spec: Spec) -> tuple[Any]:
    if g[0] is None:
        return (None,)
    compact, pivots = out
    rows, columns = input_spec.shape[-2:]
    size = min(rows, columns)
    square, of_square = compact[..., :size, :size], g[0][..., :size, :size]
    unit = nd.eye_like(square)
    lower, upper = nd.tril(square, -1) + unit, nd.triu(square, 0)
    below = nd.matmul(adjoint(nd, lower), nd.tril(of_square, -1))
    above = nd.matmul(nd.triu(of_square, 0), adjoint(nd, upper))
    if columns > size:  # U goes on to the right
        right, of_right = compact[..., :, size:], g[0][..., :, size:]
        below = below - nd.matmul(of_right, adjoint(nd, right))
    if rows > size:  # L goes on below
        bottom, of_bottom = compact[..., size:, :], g[0][..., size:, :]
        above = above - nd.matmul(adjoint(nd, bottom), of_bottom)
    both = nd.linalg_solve(adjoint(nd, lower), nd.tril(below, -1) + nd.triu(above, 0))  # L⁻ᴴ ...
    if rows > size:
        both = nd.cat([both, of_bottom], -2)
    both = adjoint(nd, nd.linalg_solve(upper, adjoint(nd, both)))  # ... U⁻ᴴ
    if columns > size:
        both = nd.cat([both, nd.linalg_solve(adjoint(nd, lower), of_right)], -1)
    return (nd.rows_in_order(both, pivots),)


def _array_in_order(xp: ModuleType, both: Any, pivots: Any) -> Any:
    return xp.take_along_axis(both, _places(xp, pivots, both.shape), -2)


def _tensor_in_order(both: Tensor, pivots: Tensor) -> Tensor:
    places = _places(backend.array_module(both.device), pivots._array, tuple(both.shape))
    return both.gather(both.ndim - 2, both.new_tensor(places, dtype=int64))


def _places(xp: ModuleType, pivots: Any, shape: tuple[int, ...]) -> Any:
    """From where each row comes, for each of the columns."""
    return xp.argsort(permutation(xp, pivots, shape[-2]), -1)[..., None] + xp.zeros(shape[-1], np.int64)


composite("rows_in_order", _array_in_order, _tensor_in_order)


LU_FACTOR = define("linalg_lu_factor", rule=_rule, forward=_forward, backward=_slope, outputs=2)
LU_FACTOR.analytic = False


def lu_factor(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor]:
    """(both factors in one matrix, pivots counted from 1). Raises: LinAlgError where a square matrix is singular."""
    if not pivot:
        raise NotImplementedError("linalg.lu_factor: LU without pivoting is not implemented")
    compact, pivots = apply(LU_FACTOR, (A,))
    if A.device.type != "meta" and bool((compact.detach().diagonal(0, -2, -1) == 0).any()):
        raise LinAlgError(
            "linalg.lu_factor: (Batch element 0): U has a zero on the diagonal: the matrix is singular, and using it "
            "would divide by zero"
        )
    return compact, pivots
