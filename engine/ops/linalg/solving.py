"""Systems of matrices (batches in the leading axes): inv, solve, det, slogdet, cholesky, with derivatives, and
what
they share with `engine.ops.linalg.decompositions`. Results are column-major, as LAPACK leaves them.

Derivative rules: M. Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008).
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.copy.operator import lay_out
from engine.ops.shared.operands import conjugate, require_floating
from engine.rules import layout
from engine.rules.spec import Spec
from engine.tensor import Tensor


class LinAlgError(RuntimeError):
    """A matrix that cannot be inverted or factorised."""


def check_matrix(name: str, spec: Spec, square: bool = False) -> None:
    """Raises RuntimeError unless the input is a floating point or complex matrix (or a batch), square if asked for."""
    if spec.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor A must have at least 2 dimensions, got shape {list(spec.shape)}")
    require_floating(name, spec)
    if spec.dtype.itemsize == 2:
        raise NotImplementedError(
            f"{name} is implemented for single and double precision, got {spec.dtype}; convert with .float()"
        )
    if square and spec.shape[-1] != spec.shape[-2]:
        raise RuntimeError(
            f"{name}: A must be batches of square matrices, but they are {spec.shape[-2]} by {spec.shape[-1]} matrices"
        )


def column_major(spec: Spec, shape: tuple[int, ...]) -> Spec:
    """A result of this shape whose matrices are stored by columns."""
    if len(shape) < 2:
        return spec.like(shape=shape)
    turned = layout.contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
    return spec.like(shape=shape, stride=(*turned[:-2], turned[-1], turned[-2]))


def guarded(message: str, function: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Calls into numpy.linalg or cupy.linalg; what LAPACK or cuSOLVER reports becomes a LinAlgError that names the
    operator. On a GPU that waits for the report, as in PyTorch.
    """
    try:
        if not isinstance(arrays[0], np.ndarray):
            with backend.reported_by_cusolver():
                return function(*arrays, **options)
        return function(*arrays, **options)
    except np.linalg.LinAlgError as cause:
        raise LinAlgError(message) from cause


def turned(nd: Any, x: Any) -> Any:
    """Transposed matrices, raw or Tensors."""
    return nd.turned(x)


def adjoint(nd: Any, x: Any) -> Any:
    """Conjugate transposed matrices, raw or Tensors; of real ones the transposed."""
    return conjugate(turned(nd, x), nd)


def as_columns(nd: Any, x: Any) -> Any:
    """A last axis of size 1 added."""
    return nd.unsqueeze(x, -1)


# --- inv, solve -------------------------------------------------------------------------------------------------------


def _inv_rule(input: Spec) -> Spec:
    check_matrix("linalg.inv", input, square=True)
    return column_major(input, tuple(input.shape))


def _inv(xp: ModuleType, input: Any) -> Any:
    return guarded(
        "linalg.inv: The inversion could not be completed because the input matrix is singular.", xp.linalg.inv, input
    )


def _inv_slope(g: Any, nd: Any, out: Any) -> Any:
    inverse = turned(nd, out)
    return -nd.matmul(inverse, nd.matmul(g, inverse))


INV = define("linalg_inv", rule=_inv_rule, forward=_inv, backward=(_inv_slope,))


@heard
def inv(A: Tensor) -> Tensor:
    """The inverse. Raises LinAlgError (a RuntimeError) for a singular matrix."""
    return apply(INV, (A,))


def _solve_rule(input: Spec, other: Spec) -> Spec:
    check_matrix("linalg.solve", input, square=True)
    if input.dtype is not other.dtype:
        raise RuntimeError(
            f"linalg.solve: Expected A and B to have the same dtype, but found A of type {input.dtype} and B of type "
            f"{other.dtype} instead"
        )
    if other.ndim < 2 or other.shape[-2] != input.shape[-1]:
        columns = other.shape[-1] if other.ndim > 1 else 1
        rows = other.shape[-2] if other.ndim > 1 else other.shape[0]
        raise RuntimeError(
            "linalg.solve: Incompatible shapes of A and B for the equation AX = B "
            f"({input.shape[-2]}x{input.shape[-1]} and {rows}x{columns})"
        )
    batch = layout.broadcast_shapes(tuple(input.shape[:-2]), tuple(other.shape[:-2]))
    return column_major(input, (*batch, *other.shape[-2:]))


def _solve(xp: ModuleType, input: Any, other: Any) -> Any:
    message = "linalg.solve: The solver failed because the input matrix is singular."
    batch = np.broadcast_shapes(input.shape[:-2], other.shape[:-2])
    other = xp.broadcast_to(other, (*batch, *other.shape[-2:]))  # not a stack of vectors, whatever its number of axes
    return guarded(message, xp.linalg.solve, xp.broadcast_to(input, (*batch, *input.shape[-2:])), other)


def _solve_slopes(g: Any, nd: Any, needs: Any, input: Any, out: Any) -> list[Any]:
    of_other = nd.linalg_solve(turned(nd, input), g)
    return [-nd.matmul(of_other, turned(nd, out)) if needs[0] else None, of_other]


SOLVE = define("linalg_solve", rule=_solve_rule, forward=_solve, backward=_solve_slopes, inputs="input other")


def linalg_solve(A: Tensor, B: Tensor) -> Tensor:
    """X with A X = B for matrices B."""
    return apply(SOLVE, (A, B))


@heard
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A X = B (X A = B unless `left`); B matrices, or vectors of shape A.shape[:-1].

    Raises: LinAlgError for a singular A; RuntimeError for shapes that do not fit.
    """
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and A.shape[:-1] == B.shape)
    if vector:
        if not left:
            raise RuntimeError(
                "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False. In this "
                "case linalg.solve is equivalent to B / A.squeeze(-1)"
            )
        result = linalg_solve(A, B.unsqueeze(-1)).squeeze(-1)
        spec = column_major(result._spec, tuple(result.shape))
        return result if result._spec is spec else lay_out(result, spec.stride)
    return linalg_solve(A, B) if left else linalg_solve(A.transpose(-1, -2), B.transpose(-1, -2)).transpose(-1, -2)


# --- det --------------------------------------------------------------------------------------------------------------


def _det_rule(input: Spec) -> Spec:
    check_matrix("linalg.det", input, square=True)
    return input.like(shape=input.shape[:-2])


def _det_slope_composed(g: Any, input: Any, out: Any) -> Any:
    return (g * out).unsqueeze(-1).unsqueeze(-1) * inv(input).transpose(-1, -2)


@implements(_det_slope_composed)
def _det_slope(g: Any, nd: Any, input: Any, out: Any) -> Any:
    # The transposed adjugate from the singular value decomposition: it exists for singular matrices as well.
    xp = nd.xp
    u, s, vh = xp.linalg.svd(input)
    n = s.shape[-1]
    others = xp.where(xp.eye(n, dtype=bool), 1, s[..., None, :]).prod(axis=-1)
    sign = xp.linalg.det(u) * xp.linalg.det(vh)
    return (g * sign)[..., None, None] * xp.matmul(xp.conj(u) * others[..., None, :], xp.conj(vh))


DET = define("linalg_det", rule=_det_rule, forward=lambda xp, input: xp.linalg.det(input), backward=(_det_slope,))


def det(A: Tensor) -> Tensor:
    """The determinant."""
    return apply(DET, (A,))


def _slogdet_rule(input: Spec) -> tuple[Spec, Spec]:
    check_matrix("linalg.slogdet", input, square=True)
    result = input.like(shape=input.shape[:-2])
    return result, result.like(dtype=input.dtype.to_real())


def _slogdet_slope(g: Any, nd: Any, input: Any, out: Any, input_spec: Spec) -> Any:
    """log det A = log |det A| + i phi has the derivative A⁻¹; the sign is e^(i phi), constant for real matrices."""
    of_logarithm = g[1]
    if g[0] is not None and input_spec.dtype.is_complex:
        of_phase = -nd.imag(conjugate(g[0], nd) * out[0]) * 1j
        of_logarithm = of_phase if of_logarithm is None else of_logarithm + of_phase
    if of_logarithm is None:
        return (None,)
    return (as_columns(nd, as_columns(nd, of_logarithm)) * adjoint(nd, nd.linalg_inv(input)),)


SLOGDET = define(
    "linalg_slogdet",
    rule=_slogdet_rule,
    forward=lambda xp, input: tuple(xp.linalg.slogdet(input)),
    backward=_slogdet_slope,
    outputs=2,
)
SLOGDET.analytic = False

# --- cholesky ---------------------------------------------------------------------------------------------------------


def _cholesky_rule(input: Spec, upper: bool) -> Spec:
    check_matrix("linalg.cholesky", input, square=True)
    return column_major(input, tuple(input.shape))


def _cholesky(xp: ModuleType, input: Any, upper: bool) -> Any:
    """L, by the lower triangle of A, or by the upper one."""
    if upper:
        input = xp.conj(input.swapaxes(-1, -2))
    message = "linalg.cholesky: The factorization could not be completed because the input is not positive-definite"
    return guarded(message, xp.linalg.cholesky, input)


def _cholesky_slope(g: Any, nd: Any, out: Any) -> Any:
    """L⁻ᴴ M L⁻¹ with half the lower triangle of Lᴴ G in M, mirrored (PyTorch's convention for a complex diagonal)."""
    upper = adjoint(nd, out)
    lower = nd.tril(nd.matmul(upper, g), 0)
    middle = (lower + adjoint(nd, nd.tril(lower, -1))) / 2
    left = nd.linalg_solve(upper, middle)
    return adjoint(nd, nd.linalg_solve(upper, adjoint(nd, left)))


CHOLESKY = define(
    "linalg_cholesky", rule=_cholesky_rule, forward=_cholesky, backward=(_cholesky_slope,), attributes="upper"
)
CHOLESKY.analytic = False


@heard
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """Lower triangular L with A = L Lᴴ, by the lower triangle of A; with `upper` the conjugate transpose, by the upper
    triangle.

    Raises: LinAlgError where A is not positive-definite.
    """
    lower = apply(CHOLESKY, (A,), (bool(upper),))
    if not upper:
        return lower
    return lay_out(lower.mH, lower._spec.stride)


FACTOR = define(
    "linalg_factor",
    rule=lambda input, upper: input.like(stride=layout.preserve_strides(input.shape, input.stride)),
    forward=lambda xp, input, upper: (xp.triu if upper else xp.tril)(input),
    backward=(lambda g: g,),
    attributes="upper",
)


def factor(L: Tensor, upper: bool) -> Tensor:
    """The triangle that is read of a Cholesky factor. Its derivative is that of the whole matrix, as PyTorch has it:
    what the other triangle gets is not masked.
    """
    return apply(FACTOR, (L,), (bool(upper),))


linalg_inv = inv  # what derivative rules call on Tensors: one name an operator
