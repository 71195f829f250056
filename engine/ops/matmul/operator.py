"""Matrix products: `matmul`, and what it chooses among."""

from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply_binary
from engine.calls.listening import heard
from engine.calls.namespaces import composite
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.calls.straight import Layout, Lines, straight
from engine.ops.matmul import gpu as matmul_cuda
from engine.ops.matmul.gemm import dot_lines, few, gemm, gemm_like, lies_by_columns, of_mat2, rows_of
from engine.ops.matmul.shapes import linear_rule, matmul_rule
from engine.ops.views.operator import reshape
from engine.ops.writing.out import deliver
from engine.rules.dtypes import bool_
from engine.rules.spec import Spec
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor

PLAIN, TURNED = (False,), (True,)
"""Attributes of `mm`: whether the second matrix is given transposed, (N, K), as the weight of `linear` lies. The first
may then have any number of axes.
"""


def _mm_rule(input: Spec, mat2: Spec, turned: bool) -> Spec:
    return linear_rule(input, mat2) if turned else matmul_rule(input, mat2)


def _product(xp: ModuleType, input: Any, other: Any) -> Any:
    # np.dot has 0.35 µs less overhead than np.matmul on small matrices (0.58 against 0.93 µs for 8x16 @ 16x16).
    if input.ndim == 2 and other.ndim == 2:
        return gemm(input, other)
    return xp.matmul(input, other)


def _mm(xp: ModuleType, input: Any, mat2: Any, turned: bool = False) -> Any:
    return product_of_rows(input, mat2) if turned else gemm(input, mat2)


def product_of_rows(input: Any, mat2: Any) -> Any:
    """input (..., K) by mat2 (N, K), transposed: (..., N)."""
    if input.ndim == 2:
        return gemm(input, mat2.T)
    return gemm(rows_of(input, mat2.shape[1]), mat2.T).reshape((*input.shape[:-1], mat2.shape[0]))


def _prepare_mm(xp: ModuleType, plan: Plan) -> Callable[..., Any]:
    (turned,) = plan.attributes
    if xp is not np:
        return partial(matmul_cuda.linear if turned else matmul_cuda.product, xp)
    return product_of_rows if turned else gemm


@straight(gemm)
def _gemm_lines(made: Layout, a: Any, b: Any) -> Lines | None:
    return Lines(*dot_lines("{0}", "{1}", made)) if few(a, b, made) else None


@straight(product_of_rows)
def _turned_lines(made: Layout, input: Any, mat2: Any) -> Lines | None:
    return Lines(*dot_lines(input.as_rows("{0}"), "{1.T}", made)) if few(input, mat2, made, turned=True) else None


def _outer(nd: Any, a: Any, b: Any) -> Any:
    """a (..., M) and b (..., N) -> (..., M, N)."""
    return a[..., :, None] * b[..., None, :]


def _slope_of_input(g: Any, nd: Any, input_spec: Spec, mat2: Any, mat2_spec: Spec) -> Any:
    if mat2_spec.ndim == 1:
        return _outer(nd, g, mat2)
    if input_spec.ndim == 1:
        return (g[..., None, :] * mat2).sum(-1)
    return nd.matmul(g, nd.turned(mat2))


def _slope_of_mat2(g: Any, nd: Any, input: Any, input_spec: Spec, mat2_spec: Spec) -> Any:
    if input_spec.ndim == 1:
        return _outer(nd, input, g)
    if mat2_spec.ndim == 1:
        return (g[..., None] * input).sum(-2)
    if mat2_spec.ndim == 2:
        # one product over all rows instead of a batch that is summed afterwards
        rows, columns = mat2_spec.shape
        return in_order_of(mat2_spec, nd, nd.turned(rows_of(input, rows)), rows_of(g, columns))
    return nd.matmul(nd.turned(input), g)


def in_order_of(spec: Spec, nd: Any, a: Any, b: Any) -> Any:
    """a @ b, the gradient of a matrix, column-major where that is a transposed matrix: of x @ weight.T it comes to the
    weight in the weight's own order.
    """
    if lies_by_columns(spec):
        return nd.turned(nd.mm(nd.turned(b), nd.turned(a)))
    return nd.mm(a, b)


def of_mat1_composed(g: Any, nd: Any, input_spec: Spec, mat2: Any, turned: bool) -> Any:
    """The gradient of the first of two matrices, in operators."""
    if not turned:
        return in_order_of(input_spec, nd, g, nd.turned(mat2))
    return in_order_of(input_spec, nd, g, mat2) if input_spec.ndim == 2 else nd.matmul(g, mat2)


def of_mat1(g: Any, nd: Any, input_spec: Spec, mat2: Any, turned: bool) -> Any:
    """The same on arrays."""
    if not turned:
        return of_mat1_composed(g, nd, input_spec, mat2, turned)
    if g.ndim == 2:
        return gemm_like(g, mat2, input_spec, None)
    return gemm(rows_of(g, mat2.shape[0]), mat2).reshape(input_spec.shape)


def of_mat2_composed(g: Any, nd: Any, input: Any, mat2_spec: Spec, turned: bool) -> Any:
    """The gradient of the second, in operators."""
    if not turned:
        return in_order_of(mat2_spec, nd, nd.turned(input), g)
    columns, width = mat2_spec.shape
    return in_order_of(mat2_spec, nd, nd.turned(rows_of(g, columns)), rows_of(input, width))


@straight(of_mat1)
def mat1_lines(made: Layout, g: Any, nd: Any, input_spec: Spec, mat2: Any, turned: bool) -> Lines | None:
    """What a replay calls in place of `of_mat1`."""
    if not few(g, mat2, made, turned=not turned) or not made.contiguous:
        return None
    return Lines(*dot_lines(g.as_rows("{0}"), "{3}" if turned else "{3.T}", made))


@straight(of_mat2)
def mat2_lines(
    made: Layout, g: Any, input: Any, mat2_spec: Spec, turned: bool, into: Any, place: int = 1
) -> Lines | None:
    """What a replay calls in place of `of_mat2`; `place` is that of the input among the arguments."""
    if into is not None or not few(g, input, made) or not made.contiguous:
        return None
    of_g, of_input = g.as_rows("{0}"), input.as_rows(f"{{{place}}}")
    return Lines(*(dot_lines(f"{of_g}.T", of_input, made) if turned else dot_lines(f"{of_input}.T", of_g, made)))


def of_mat1_on_gpu(g: Any, nd: Any, input_spec: Spec, mat2: Any, turned: bool) -> Any:
    """The same on a GPU."""
    if not turned:
        return of_mat1_composed(g, nd, input_spec, mat2, turned)
    return matmul_cuda.linear_input_slope(nd.xp, g, mat2, input_spec)


def of_mat2_on_gpu(g: Any, nd: Any, input: Any, mat2_spec: Spec, turned: bool, into: Any) -> Any:
    """The same on a GPU."""
    if not turned:
        return of_mat2_composed(g, nd, input, mat2_spec, turned)
    return matmul_cuda.linear_weight_slope(nd.xp, g, input, mat2_spec, into)


MM = define(
    "mm",
    rule=_mm_rule,
    forward=_mm,
    backward=(implements(of_mat1_composed)(of_mat1), implements(of_mat2_composed)(of_mat2)),
    inputs="input mat2",
    attributes="turned",
    prepare=_prepare_mm,
)
MM.kernel("cuda")(
    lambda xp, input, mat2, turned=False: (matmul_cuda.linear if turned else matmul_cuda.product)(xp, input, mat2)
)
MM.plans_for("cuda")(matmul_cuda.planned)
MM.derivative("cuda", (implements(of_mat1_composed)(of_mat1_on_gpu), implements(of_mat2_composed)(of_mat2_on_gpu)))

_define = partial(define, rule=matmul_rule, forward=_product)

MV = _define(
    "mv",
    backward=(
        lambda g, nd, vec: _outer(nd, g, vec),
        lambda g, nd, input: nd.mv(nd.turned(input), g),
    ),
    inputs="input vec",
)
DOT = _define("dot", backward=(lambda g, tensor: g * tensor, lambda g, input: g * input), inputs="input tensor")
# Batches of any number of axes, which broadcast, as BLAS and cuBLAS take them without a copy.
BMM = _define("bmm", backward=(_slope_of_input, _slope_of_mat2), inputs="input mat2")

for _operator in (MV, DOT, BMM):
    _operator.kernel("cuda")(matmul_cuda.product)


def raw_matmul(xp: ModuleType, input: Any, other: Any) -> Any:
    """The product of arrays of any number of axes."""
    return _product(xp, input, other) if xp is np else matmul_cuda.product(xp, input, other)


composite("matmul", raw_matmul)


@heard
def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Matrix product with PyTorch's broadcasting: vectors, matrices, batches. It is `dot`, `mv`, `mm` or `bmm`.

    Raises: RuntimeError naming both shapes when the inner sizes differ.
    """
    if out is not None:
        return deliver(out, matmul, input, other)
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        wrong = other if isinstance(input, Tensor) else input
        if isinstance(wrong, SparseTensor):
            return input @ other
        raise TypeError(f"matmul(): arguments must be Tensors, not {type(wrong).__name__}")
    ndim, ndim_of_other = input._spec.ndim, other._spec.ndim
    if ndim == 2 and ndim_of_other == 2:
        return apply_binary(MM, input, other, PLAIN)
    if ndim == 1 and ndim_of_other == 1:
        return apply_binary(DOT, input, other)
    if ndim == 2 and ndim_of_other == 1:
        return apply_binary(MV, input, other)
    if ndim == 1 and ndim_of_other == 2 and input.shape[0] == other.shape[0]:
        return reshape(apply_binary(MM, reshape(input, (1, input.shape[0])), other, PLAIN), (other.shape[1],))
    foldable = ndim > 2 and ndim_of_other == 2 and input.is_contiguous() and input.dtype is not bool_
    if foldable and input.shape[-1] == other.shape[0]:
        # One matrix product, as in PyTorch: a BLAS call a batch element would be slower.
        rows = reshape(input, (prod(input.shape[:-1]), input.shape[-1]))
        return reshape(apply_binary(MM, rows, other, PLAIN), (*input.shape[:-1], other.shape[1]))
    return apply_binary(BMM, input, other)


@heard
def mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Product of two matrices."""
    if out is not None:
        return deliver(out, mm, input, mat2)
    if isinstance(input, SparseTensor) or isinstance(mat2, SparseTensor):
        return input @ mat2
    require_ndim("mm", (input, 2), (mat2, 2))
    return apply_binary(MM, input, mat2, PLAIN)


@heard
def mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Product of a matrix and a vector."""
    if out is not None:
        return deliver(out, mv, input, vec)
    require_ndim("mv", (input, 2), (vec, 1))
    return apply_binary(MV, input, vec)


@heard
def dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Product of two vectors."""
    if out is not None:
        return deliver(out, dot, input, tensor)
    require_ndim("dot", (input, 1), (tensor, 1))
    return apply_binary(DOT, input, tensor)


@heard
def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Products of two batches of matrices of equal length."""
    if out is not None:
        return deliver(out, bmm, input, mat2)
    require_ndim("bmm", (input, 3), (mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"bmm: expected batches of the same size, got {list(input.shape)} and {list(mat2.shape)}")
    return apply_binary(BMM, input, mat2)


def require_ndim(name: str, *expected: tuple[Tensor, int]) -> None:
    """Raises RuntimeError for a tensor with another number of axes."""
    for tensor, ndim in expected:
        if tensor.ndim != ndim:
            raise RuntimeError(
                f"{name}: expected a {ndim}-D tensor, got shape {list(tensor.shape)}; matmul() broadcasts"
            )


@heard
def outer(input: Tensor, vec2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Outer product of two vectors."""
    if out is not None:
        return deliver(out, outer, input, vec2, same_dtype=False, overlap="any")
    require_ndim("outer", (input, 1), (vec2, 1))
    return input.unsqueeze(1) * vec2
