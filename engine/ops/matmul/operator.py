"""Matrix products. BLAS reads transposed operands through leading dimensions, so neither forward nor backward copies an
operand to transpose it.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.modes import open_blocks
from engine.calls.derivative import implements
from engine.calls.dispatch import apply, apply_binary, apply_ternary, define
from engine.calls.listening import heard, hears, tell, wanted
from engine.calls.namespaces import composite
from engine.calls.plan import Plan
from engine.ops.matmul import gpu as matmul_cuda
from engine.ops.matmul.kernels import bias as kernels
from engine.ops.matmul.kernels import product
from engine.ops.pointwise.selection import constant_beside
from engine.ops.shared.fused import bias_slope, on_arrays
from engine.ops.shared.operands import common_dtype, zeros_like
from engine.ops.views.operator import reshape
from engine.ops.writing.out import deliver
from engine.rules import layout
from engine.rules.dtypes import bool_
from engine.rules.spec import Spec
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor


def _same_dtype(name: str, *specs: Spec) -> None:
    found = {spec.dtype for spec in specs if spec is not None}
    if len(found) > 1:
        listed = " and ".join(str(spec.dtype) for spec in specs if spec is not None)
        raise RuntimeError(
            f"{name}: expected operands to have the same dtype, but got {listed}; convert one with .to()"
        )


def _matmul_rule(input: Spec, other: Spec) -> Spec:
    if not input.ndim or not other.ndim:
        raise RuntimeError(
            f"matmul: both arguments need to be at least 1D, but they are {input.ndim}D and {other.ndim}D"
        )
    _same_dtype("matmul", input, other)
    inner = other.shape[-2] if other.ndim > 1 else other.shape[0]
    if input.shape[-1] != inner:
        raise RuntimeError(
            f"matmul: mat1 and mat2 shapes cannot be multiplied ({_by(input)} and {_by(other)}): expected "
            f"{input.shape[-1]} rows in the second, got {inner}"
            + (
                "; if it holds one row per output, transpose it (.T)"
                if other.ndim > 1 and other.shape[-1] == input.shape[-1]
                else ""
            )
        )
    batch = layout.broadcast_shapes(tuple(input.shape[:-2]), tuple(other.shape[:-2]))
    rows = (input.shape[-2],) if input.ndim > 1 else ()
    columns = (other.shape[-1],) if other.ndim > 1 else ()
    return input.like(shape=(*batch, *rows, *columns), dtype=common_dtype(input, other))


def _by(spec: Spec) -> str:
    return "x".join(map(str, spec.shape))


def _product(xp: ModuleType, input: Any, other: Any) -> Any:
    # np.dot has 0.35 µs less overhead than np.matmul on small matrices (0.58 against 0.93 µs for 8x16 @ 16x16).
    if input.ndim == 2 and other.ndim == 2:
        return _dot(input, other)
    return xp.matmul(input, other)


_LOOKED_AT_FROM = 1 << 14  # multiplications, which take longer than a look at strides


def _dot(a: Any, b: Any) -> Any:
    """a @ b for matrices, by the compiled product where it is faster than BLAS."""
    work = a.size * b.shape[1]
    if work < _LOOKED_AT_FROM or a.__class__ is not np.ndarray:
        return a.dot(b)
    return product.dot(a, b)


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
        return _in_order_of(mat2_spec, nd, nd.turned(_rows(input, rows)), _rows(g, columns))
    return nd.matmul(nd.turned(input), g)


def _in_order_of(spec: Spec, nd: Any, a: Any, b: Any) -> Any:
    """a @ b, the gradient of a matrix, column-major where that is a transposed matrix: of x @ weight.T it comes to the
    weight in the weight's own order.
    """
    if not spec.contiguous and spec.stride == (1, spec.shape[0]):
        return nd.turned(nd.mm(nd.turned(b), nd.turned(a)))
    return nd.mm(a, b)


def _run(xp: ModuleType, plan: Plan) -> Callable[..., Any]:
    return _dot if xp is np else partial(matmul_cuda.product, xp)


_define = partial(define, rule=_matmul_rule, forward=_product)

MM = _define(
    "mm",
    backward=(
        lambda g, nd, input_spec, mat2: _in_order_of(input_spec, nd, g, nd.turned(mat2)),
        lambda g, nd, input, mat2_spec: _in_order_of(mat2_spec, nd, nd.turned(input), g),
    ),
    inputs="input mat2",
    prepare=_run,
)
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

for _operator in (MM, MV, DOT, BMM):
    _operator.kernel("cuda")(matmul_cuda.product)


def _raw_matmul(xp: ModuleType, input: Any, other: Any) -> Any:
    return _product(xp, input, other) if xp is np else matmul_cuda.product(xp, input, other)


composite("matmul", _raw_matmul)


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
        return apply_binary(MM, input, other)
    if ndim == 1 and ndim_of_other == 1:
        return apply_binary(DOT, input, other)
    if ndim == 2 and ndim_of_other == 1:
        return apply_binary(MV, input, other)
    if ndim == 1 and ndim_of_other == 2 and input.shape[0] == other.shape[0]:
        return reshape(apply_binary(MM, reshape(input, (1, input.shape[0])), other), (other.shape[1],))
    foldable = ndim > 2 and ndim_of_other == 2 and input.is_contiguous() and input.dtype is not bool_
    if foldable and input.shape[-1] == other.shape[0]:
        # One matrix product, as in PyTorch: a BLAS call a batch element would be slower.
        rows = reshape(input, (prod(input.shape[:-1]), input.shape[-1]))
        return reshape(apply_binary(MM, rows, other), (*input.shape[:-1], other.shape[1]))
    return apply_binary(BMM, input, other)


@heard
def mm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Product of two matrices."""
    if out is not None:
        return deliver(out, mm, input, mat2)
    if isinstance(input, SparseTensor) or isinstance(mat2, SparseTensor):
        return input @ mat2
    _require_ndim("mm", (input, 2), (mat2, 2))
    return apply_binary(MM, input, mat2)


@heard
def mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Product of a matrix and a vector."""
    if out is not None:
        return deliver(out, mv, input, vec)
    _require_ndim("mv", (input, 2), (vec, 1))
    return apply_binary(MV, input, vec)


@heard
def dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Product of two vectors."""
    if out is not None:
        return deliver(out, dot, input, tensor)
    _require_ndim("dot", (input, 1), (tensor, 1))
    return apply_binary(DOT, input, tensor)


@heard
def bmm(input: Tensor, mat2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Products of two batches of matrices of equal length."""
    if out is not None:
        return deliver(out, bmm, input, mat2)
    _require_ndim("bmm", (input, 3), (mat2, 3))
    if input.shape[0] != mat2.shape[0]:
        raise RuntimeError(f"bmm: expected batches of the same size, got {list(input.shape)} and {list(mat2.shape)}")
    return apply_binary(BMM, input, mat2)


def _require_ndim(name: str, *expected: tuple[Tensor, int]) -> None:
    for tensor, ndim in expected:
        if tensor.ndim != ndim:
            raise RuntimeError(
                f"{name}: expected a {ndim}-D tensor, got shape {list(tensor.shape)}; matmul() broadcasts"
            )


# --- linear -----------------------------------------------------------------------------------------------------------


def _linear_rule(input: Spec, weight: Spec, bias: Spec | None = None) -> Spec:
    _same_dtype("linear", input, weight, bias)  # type: ignore[arg-type]
    if weight.ndim != 2 or not input.ndim or input.shape[-1] != weight.shape[1]:
        raise RuntimeError(
            f"linear: mat1 and mat2 shapes cannot be multiplied ({_by(input)} and "
            f"{'x'.join(map(str, weight.shape[::-1]))}): the last size of the input, {list(input.shape)}, must be "
            f"in_features, {weight.shape[-1] if weight.ndim else None}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(f"linear: expected a bias of shape {[weight.shape[0]]}, got {list(bias.shape)}")
    return input.like(shape=(*input.shape[:-1], weight.shape[0]))


def _linear(xp: ModuleType, input: Any, weight: Any, bias: Any = None) -> Any:
    rows = input if input.ndim == 2 else input.reshape(prod(input.shape[:-1]), input.shape[-1])
    out = _dot(rows, weight.T)
    if bias is not None:
        out += bias
    return out if input.ndim == 2 else out.reshape((*input.shape[:-1], weight.shape[0]))


def _prepare_linear(xp: ModuleType, plan: Plan) -> Callable[..., Any]:
    """A compiled kernel adds the bias where there is one for it."""
    if xp is not np:
        return partial(matmul_cuda.linear, xp)
    if len(plan.input_specs) == 2:
        return partial(_linear, xp)
    input, _, bias = plan.input_specs
    if bias.dtype.numpy.char not in "fd" or not bias.contiguous:
        return partial(_linear, xp)
    few = input.numel * plan.out.shape[-1] < product.least() and input.contiguous
    of_rows = _linear_of_rows if few else _linear_of_many_rows
    return of_rows if input.ndim == 2 else partial(_linear_of_batches, of_rows, tuple(plan.out.shape))


def _linear_of_rows(input: Any, weight: Any, bias: Any) -> Any:
    out = input.dot(weight.T)
    kernels.add_bias(out, bias)
    return out


def _linear_of_many_rows(input: Any, weight: Any, bias: Any) -> Any:
    out = product.dot(input, weight.T)
    kernels.add_bias(out, bias)
    return out


def _linear_of_batches(
    of_rows: Callable[[Any, Any, Any], Any], shape: tuple[int, ...], input: Any, weight: Any, bias: Any
) -> Any:
    return of_rows(input.reshape(prod(shape[:-1]), input.shape[-1]), weight, bias).reshape(shape)


def _rows(value: Any, width: int) -> Any:
    return value if value.ndim == 2 else value.reshape((prod(value.shape[:-1]), width))


def _linear_weight_slope_composed(g: Any, input: Any, weight_spec: Spec) -> Any:
    out_features, in_features = weight_spec.shape
    return matmul(_rows(g, out_features).t(), _rows(input, in_features))


@implements(_linear_weight_slope_composed)
def _linear_weight_slope(g: Any, input: Any, weight_spec: Spec, into: Any) -> Any:
    out_features, in_features = weight_spec.shape
    rows, g = _rows(input, in_features), _rows(g, out_features)
    if into is not None and into.dtype is g.dtype is rows.dtype:
        if into.flags.c_contiguous:
            if product.serves(g.T, rows):
                return product.multiply(g.T, rows, into)
            return g.T.dot(rows, into)
        if into.flags.f_contiguous:
            rows.T.dot(g, into.T)
            return into
    if weight_spec.contiguous:
        return _dot(g.T, rows)
    return rows.T.dot(g).T  # lies as a column-major weight does, so that AccumulateGrad need not copy it


def _linear_input_slope_composed(g: Any, weight: Any) -> Any:
    return matmul(g, weight)


@implements(_linear_input_slope_composed)
def _linear_input_slope(g: Any, input_spec: Spec, weight: Any, weight_spec: Spec) -> Any:
    if g.ndim == 2:
        return _dot(g, weight)
    return _dot(g.reshape(-1, weight_spec.shape[0]), weight).reshape(input_spec.shape)


def _linear_bias_slope_composed(g: Any, bias_spec: Spec) -> Any:
    return _rows(g, bias_spec.shape[0]).sum(0)


@implements(_linear_bias_slope_composed)
def _linear_bias_slope(g: Any, nd: Any, bias_spec: Spec) -> Any:
    rows = _rows(g, bias_spec.shape[0])
    if rows.__class__ is np.ndarray and rows.dtype.char in "fd" and rows.flags.c_contiguous:
        return kernels.column_sums(rows)
    return rows.sum(0)


LINEAR = define(
    "linear",
    rule=_linear_rule,
    forward=_linear,
    backward=(_linear_input_slope, _linear_weight_slope, _linear_bias_slope),
    inputs="input weight bias",
    prepare=_prepare_linear,
)
LINEAR.kernel("cuda")(matmul_cuda.linear)
LINEAR.derivative(
    "cuda",
    (
        implements(_linear_input_slope_composed)(
            lambda g, nd, input_spec, weight: matmul_cuda.linear_input_slope(nd.xp, g, weight, input_spec)
        ),
        implements(_linear_weight_slope_composed)(
            lambda g, nd, input, weight_spec, into: matmul_cuda.linear_weight_slope(nd.xp, g, input, weight_spec, into)
        ),
        on_arrays(_linear_bias_slope, bias_slope),
    ),
)


@hears
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias.

    Shapes: input (..., in_features), weight (out_features, in_features), bias (out_features,) -> (..., out_features).
    """
    if open_blocks.open and wanted(linear):
        return tell(linear, input, weight, bias, out=out)
    if out is not None:
        return deliver(out, linear, input, weight, bias)
    if weight._spec.ndim == 1:
        return matmul(input, weight) if bias is None else matmul(input, weight) + bias
    return apply(LINEAR, (input, weight)) if bias is None else apply_ternary(LINEAR, input, weight, bias)


def _sum_rule(name: str, input: Spec, mat1: Spec, mat2: Spec, beta: Any, alpha: Any) -> Spec:
    made = _matmul_rule(mat1, mat2)
    check_sum(name, input, made, beta, alpha)
    return made


def check_sum(name: str, input: Spec, product: Spec, beta: Any, alpha: Any) -> None:
    """Raises RuntimeError for another dtype or shape of the input than the product has, and for complex factors of real
    tensors; NotImplementedError for bools.
    """
    kind, shape = product.dtype, product.shape
    if input.dtype is not kind:
        raise RuntimeError(
            f"{name}: expected the input and the product to have the same dtype, but got {input.dtype} and {kind}; "
            "convert one with .to()"
        )
    if kind is bool_:
        raise NotImplementedError(f'"{name}" not implemented for {kind}; convert with .int()')
    if input.shape != shape and layout.broadcast_shapes(tuple(input.shape), tuple(shape)) != tuple(shape):
        raise RuntimeError(
            f"{name}: expected an input that expands to the product's shape {list(shape)}, but got {list(input.shape)}"
        )
    if not kind.is_complex and (isinstance(beta, complex) or isinstance(alpha, complex)):
        raise RuntimeError(f"{name}: beta={beta} and alpha={alpha} cannot be converted to {kind}: they are complex")


def _sum(xp: ModuleType, input: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any) -> Any:
    """The product, into which the input is added where it lies."""
    out = _raw_matmul(xp, mat1, mat2)
    kind = out.dtype
    if kind.kind in "iu":  # factors of integers are whole, fractions of them cut off
        beta, alpha = int(beta), int(alpha)
    if kind.itemsize == 2 and kind.kind in "fV" and not beta == alpha == 1:  # rounded once
        out, input = out.astype(np.float32), input.astype(np.float32)
    if alpha != 1:
        out *= alpha
    if beta != 0:  # else the input is left out, NaN and all
        out += input if beta == 1 else input * beta
    return out.astype(kind, copy=False)


def _scaled(nd: Any, g: Any, factor: Any) -> Any:
    if factor == 0:  # whatever the gradient is
        return zeros_like(g, nd)
    return g if factor == 1 else g * factor


ADDMM = define(
    "addmm",
    rule=partial(_sum_rule, "addmm"),
    forward=_sum,
    backward=(
        lambda g, nd, beta: _scaled(nd, g, beta),
        lambda g, nd, mat1_spec, mat2, alpha: _in_order_of(mat1_spec, nd, _scaled(nd, g, alpha), nd.turned(mat2)),
        lambda g, nd, mat1, mat2_spec, alpha: _in_order_of(mat2_spec, nd, nd.turned(mat1), _scaled(nd, g, alpha)),
    ),
    inputs="input mat1 mat2",
    attributes="beta alpha",
)
BADDBMM = define(
    "baddbmm",
    rule=partial(_sum_rule, "baddbmm"),
    forward=_sum,
    backward=(
        lambda g, nd, beta: _scaled(nd, g, beta),
        lambda g, nd, batch2, alpha: nd.matmul(_scaled(nd, g, alpha), nd.turned(batch2)),
        lambda g, nd, batch1, alpha: nd.matmul(nd.turned(batch1), _scaled(nd, g, alpha)),
    ),
    inputs="input batch1 batch2",
    attributes="beta alpha",
)


def _factor(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor | np.generic) else value


@heard
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2). A beta of 0 leaves the input out, NaN and all; integers take whole factors,
    fractions of them cut off, as in PyTorch.

    Raises: RuntimeError for shapes and dtypes that do not fit.
    """
    if out is not None:
        return deliver(out, addmm, input, mat1, mat2, beta=beta, alpha=alpha)
    _require_ndim("addmm", (mat1, 2), (mat2, 2))
    made: Tensor = apply(ADDMM, (input, mat1, mat2), (_factor(beta), _factor(alpha)))
    return made


@heard
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2), see `addmm`."""
    if out is not None:
        return deliver(out, baddbmm, input, batch1, batch2, beta=beta, alpha=alpha)
    _require_ndim("baddbmm", (batch1, 3), (batch2, 3))
    if batch1.shape[0] != batch2.shape[0]:
        raise RuntimeError(
            f"baddbmm: expected batches of the same size, got {list(batch1.shape)} and {list(batch2.shape)}"
        )
    made: Tensor = apply(BADDBMM, (input, batch1, batch2), (_factor(beta), _factor(alpha)))
    return made


def weighted_sum(name: str, input: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * input + alpha * product in the shape and dtype of the product. A beta of 0 leaves the input out, NaN and
    all; integers take whole factors, fractions of them cut off, as in PyTorch.

    Raises: RuntimeError for another dtype or shape of the input; NotImplementedError for bools.
    """
    check_sum(name, input._spec, product._spec, beta, alpha)
    kind = product._spec.dtype
    if beta == alpha == 1:
        return input + product
    if not kind.is_complex and not kind.is_floating_point:
        beta, alpha = int(beta), int(alpha)
    if kind.itemsize == 2 and kind.is_floating_point:  # rounded once
        input, product = input.float(), product.float()
    total = product if alpha == 1 else product * alpha
    if beta != 0:
        total = (input if beta == 1 else input * beta) + total
    elif input.requires_grad:
        total = constant_beside(total, input)
    return total if total.dtype is kind else total.to(kind)


@heard
def outer(input: Tensor, vec2: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Outer product of two vectors."""
    if out is not None:
        return deliver(out, outer, input, vec2, same_dtype=False, overlap="any")
    _require_ndim("outer", (input, 1), (vec2, 1))
    return input.unsqueeze(1) * vec2
