"""beta * input + alpha * product, with one matrix product (`addmm`, `linear`) or a batch of them (`baddbmm`)."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.modes import open_blocks
from engine.calls.derivative import implements
from engine.calls.dispatch import apply, apply_binary, apply_ternary, no_tensor
from engine.calls.listening import heard, hears, tell, wanted
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.calls.straight import Layout, Lines, straight
from engine.ops.matmul import gpu as matmul_cuda
from engine.ops.matmul.gemm import dot_lines, few, gemm, gemm_like, of_mat2, rows_of
from engine.ops.matmul.kernels import bias as kernels
from engine.ops.matmul.kernels import product
from engine.ops.matmul.operator import (
    MM,
    TURNED,
    mat1_lines,
    mat2_lines,
    matmul,
    of_mat1,
    of_mat1_composed,
    of_mat1_on_gpu,
    of_mat2_composed,
    of_mat2_on_gpu,
    product_of_rows,
    raw_matmul,
    require_ndim,
)
from engine.ops.matmul.shapes import check_sum, linear_rule, matmul_rule
from engine.ops.pointwise.selection import constant_beside
from engine.ops.shared.fused import bias_slope, served
from engine.ops.shared.operands import zeros_like
from engine.ops.writing.out import deliver
from engine.rules.spec import Spec
from engine.sharing.threads import WORTH
from engine.tensor import Tensor


def _addmm_rule(input: Spec, mat1: Spec, mat2: Spec, beta: Any, alpha: Any, turned: bool) -> Spec:
    return linear_rule(mat1, mat2, input) if turned else _sum_rule("addmm", input, mat1, mat2, beta, alpha)


def _sum_rule(name: str, input: Spec, mat1: Spec, mat2: Spec, beta: Any, alpha: Any) -> Spec:
    made = matmul_rule(mat1, mat2)
    check_sum(name, input, made, beta, alpha)
    return made


def _addmm(xp: ModuleType, input: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any, turned: bool = False) -> Any:
    return _summed(input, product_of_rows(mat1, mat2) if turned else raw_matmul(xp, mat1, mat2), beta, alpha)


def _baddbmm(xp: ModuleType, input: Any, batch1: Any, batch2: Any, beta: Any, alpha: Any) -> Any:
    return _summed(input, raw_matmul(xp, batch1, batch2), beta, alpha)


def _summed(input: Any, out: Any, beta: Any, alpha: Any) -> Any:
    """The product, into which the input is added where it lies."""
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


def _prepare_addmm(xp: ModuleType, plan: Plan) -> Callable[..., Any]:
    """A compiled kernel adds a vector to the rows where there is one for it."""
    beta, alpha, turned = plan.attributes
    if xp is not np:
        return partial(_addmm_on_gpu, xp, beta=beta, alpha=alpha, turned=turned)
    input, mat1, _ = plan.input_specs
    columns = plan.out.shape[-1]
    vector = input.ndim == 1 and input.contiguous and input.shape[0] == columns and input.dtype.numpy.char in "fd"
    if not (vector and beta == alpha == 1):
        return partial(_addmm, xp, beta=beta, alpha=alpha, turned=turned)
    few = mat1.numel * columns < product.least(turned, plan.out.numel) and mat1.contiguous
    if mat1.ndim != 2:
        return _biased_rows_of_any if turned and not few else _few_biased_rows_of_any
    if not turned:
        return _biased
    return _few_biased_rows if few else _biased_rows


def _biased(input: Any, mat1: Any, mat2: Any) -> Any:
    out = gemm(mat1, mat2)
    kernels.add_bias(out, input)
    return out


def _few_biased_rows(input: Any, mat1: Any, mat2: Any) -> Any:
    out = mat1.dot(mat2.T)
    kernels.add_bias(out, input)
    return out


def _biased_rows(input: Any, mat1: Any, mat2: Any) -> Any:
    out = product.dot(mat1, mat2.T)
    kernels.add_bias(out, input)
    return out


def _few_biased_rows_of_any(input: Any, mat1: Any, mat2: Any) -> Any:
    return _few_biased_rows(input, rows_of(mat1, mat2.shape[1]), mat2).reshape((*mat1.shape[:-1], mat2.shape[0]))


def _biased_rows_of_any(input: Any, mat1: Any, mat2: Any) -> Any:
    return _biased_rows(input, rows_of(mat1, mat2.shape[1]), mat2).reshape((*mat1.shape[:-1], mat2.shape[0]))


@straight(_few_biased_rows)
@straight(_few_biased_rows_of_any)
def _biased_lines(made: Layout, input: Any, mat1: Any, mat2: Any) -> Lines | None:
    if not (few(mat1, mat2, made, turned=True) and made.contiguous and made.size < WORTH):
        return None
    lines = dot_lines(mat1.as_rows("{1}"), "{2.T}", made)
    return Lines(*lines, f"{{add}}({made.as_rows('{out}')}, {{0}})", add=kernels._add_bias[made.dtype.char])


def _addmm_on_gpu(xp: ModuleType, input: Any, mat1: Any, mat2: Any, beta: Any, alpha: Any, turned: bool = False) -> Any:
    if turned:
        return matmul_cuda.linear(xp, mat1, mat2, input)
    return _addmm(xp, input, mat1, mat2, beta, alpha)


def _scaled(nd: Any, g: Any, factor: Any) -> Any:
    if factor == 0:  # whatever the gradient is
        return zeros_like(g, nd)
    return g if factor == 1 else g * factor


def _of_input_composed(g: Any, nd: Any, beta: Any) -> Any:
    return _scaled(nd, g, beta)


@implements(_of_input_composed)
def _of_input(g: Any, nd: Any, input_spec: Spec, beta: Any, into: Any) -> Any:
    if beta != 1 or input_spec.shape != g.shape[-1:]:
        return _scaled(nd, g, beta)
    rows = g if g.ndim == 2 else rows_of(g, g.shape[-1])
    if rows.__class__ is np.ndarray and rows.dtype.char in "fd" and rows.flags.c_contiguous:
        return kernels.column_sums(rows, into if into is not None and into.dtype is rows.dtype else None)
    return rows.sum(0)


@implements(_of_input_composed)
def _of_input_on_gpu(g: Any, nd: Any, input_spec: Spec, beta: Any) -> Any:
    if beta == 1 and input_spec.shape == g.shape[-1:] and served(g):
        return bias_slope(g, nd, input_spec)
    return _of_input(g, nd, input_spec, beta, None)


def _of_mat1_composed(g: Any, nd: Any, mat1_spec: Spec, mat2: Any, alpha: Any, turned: bool) -> Any:
    return of_mat1_composed(_scaled(nd, g, alpha), nd, mat1_spec, mat2, turned)


@implements(_of_mat1_composed)
def _of_mat1(g: Any, nd: Any, mat1_spec: Spec, mat2: Any, alpha: Any, turned: bool) -> Any:
    if alpha != 1:
        g = _scaled(nd, g, alpha)
    return gemm(g, mat2) if turned and g.ndim == 2 else of_mat1(g, nd, mat1_spec, mat2, turned)


@implements(_of_mat1_composed)
def _of_mat1_on_gpu(g: Any, nd: Any, mat1_spec: Spec, mat2: Any, alpha: Any, turned: bool) -> Any:
    return of_mat1_on_gpu(_scaled(nd, g, alpha), nd, mat1_spec, mat2, turned)


def _of_mat2_composed(g: Any, nd: Any, mat1: Any, mat2_spec: Spec, alpha: Any, turned: bool) -> Any:
    return of_mat2_composed(_scaled(nd, g, alpha), nd, mat1, mat2_spec, turned)


@implements(_of_mat2_composed)
def _of_mat2(g: Any, nd: Any, mat1: Any, mat2_spec: Spec, alpha: Any, turned: bool, into: Any) -> Any:
    if alpha != 1:
        g = _scaled(nd, g, alpha)
    if turned and g.ndim == 2:
        return gemm_like(g.T, mat1, mat2_spec, into)
    return of_mat2(g, mat1, mat2_spec, turned, into)


@implements(_of_mat2_composed)
def _of_mat2_on_gpu(g: Any, nd: Any, mat1: Any, mat2_spec: Spec, alpha: Any, turned: bool, into: Any) -> Any:
    return of_mat2_on_gpu(_scaled(nd, g, alpha), nd, mat1, mat2_spec, turned, into)


@straight(_of_input)
def _input_lines(made: Layout, g: Any, nd: Any, input_spec: Spec, beta: Any, into: Any) -> Lines | None:
    if into is not None or beta != 1 or not isinstance(g, Layout) or input_spec.shape != g.shape[-1:]:
        return None
    if len(g.shape) < 2 or not g.compiled or g.size >= WORTH or not made.contiguous:
        return None
    return Lines("{out} = {memory}", f"{{sums}}({g.as_rows('{0}')}, {{out}})", sums=kernels._column_sums[g.dtype.char])


@straight(_of_mat1)
def _mat1_lines(made: Layout, g: Any, nd: Any, mat1_spec: Spec, mat2: Any, alpha: Any, turned: bool) -> Lines | None:
    return mat1_lines(made, g, nd, mat1_spec, mat2, turned) if alpha == 1 else None


@straight(_of_mat2)
def _mat2_lines(
    made: Layout, g: Any, nd: Any, mat1: Any, mat2_spec: Spec, alpha: Any, turned: bool, into: Any
) -> Lines | None:
    return mat2_lines(made, g, mat1, mat2_spec, turned, into, place=2) if alpha == 1 else None


_BIASED = (1, 1, True)  # beta, alpha, and the weight lies transposed

ADDMM = define(
    "addmm",
    rule=_addmm_rule,
    forward=_addmm,
    backward=(_of_input, _of_mat1, _of_mat2),
    inputs="input mat1 mat2",
    attributes="beta alpha turned",
    prepare=_prepare_addmm,
)
ADDMM.kernel("cuda")(_addmm_on_gpu)


@ADDMM.plans_for("cuda")
def _addmm_planned(plan: Plan) -> Callable[..., Any] | None:
    return matmul_cuda.planned(plan) if plan.attributes == _BIASED else None


ADDMM.derivative("cuda", (_of_input_on_gpu, _of_mat1_on_gpu, _of_mat2_on_gpu))
BADDBMM = define(
    "baddbmm",
    rule=partial(_sum_rule, "baddbmm"),
    forward=_baddbmm,
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
    require_ndim("addmm", (mat1, 2), (mat2, 2))
    made: Tensor = apply(ADDMM, (input, mat1, mat2), (_factor(beta), _factor(alpha), False))
    return made


@heard
def baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2), see `addmm`."""
    if out is not None:
        return deliver(out, baddbmm, input, batch1, batch2, beta=beta, alpha=alpha)
    require_ndim("baddbmm", (batch1, 3), (batch2, 3))
    if batch1.shape[0] != batch2.shape[0]:
        raise RuntimeError(
            f"baddbmm: expected batches of the same size, got {list(batch1.shape)} and {list(batch2.shape)}"
        )
    made: Tensor = apply(BADDBMM, (input, batch1, batch2), (_factor(beta), _factor(alpha)))
    return made


@hears
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias: `addmm`, or `mm` without a bias, on the weight as it lies.

    Shapes: input (..., in_features), weight (out_features, in_features), bias (out_features,) -> (..., out_features).
    """
    if open_blocks.open and wanted(linear):
        return tell(linear, input, weight, bias, out=out)
    if out is not None:
        return deliver(out, linear, input, weight, bias)
    if weight._spec.ndim == 1:
        return matmul(input, weight) if bias is None else matmul(input, weight) + bias
    try:
        if bias is None:
            return apply_binary(MM, input, weight, TURNED)
        return apply_ternary(ADDMM, bias, input, weight, _BIASED)
    except TypeError:
        if all(isinstance(each, Tensor) for each in (input, weight, bias) if each is not None):
            raise
    raise no_tensor("linear", ("input", "weight", "bias"), (input, weight, bias))


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
