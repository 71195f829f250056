"""nll_loss over class indices as one operator: of logarithms of probabilities.

Source: PyTorch's aten/src/ATen/native/LossNLL.cpp, for the formula, the errors, and the meaning of `weight` and
`ignore_index`.
"""

from types import ModuleType
from typing import Any

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.namespaces import raw_namespace
from engine.calls.operator import define
from engine.memory.backend import array_module
from engine.ops.loss.rows import (
    as_planes,
    as_rows,
    flat_targets,
    from_rows,
    indices_of,
    loss_rule,
    reduced,
    weights_of,
)
from engine.ops.shared.fused import flattened, on_arrays
from engine.ops.shared.operands import optional
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _nll_loss(xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    rows = as_rows(xp, input)
    index, counted = indices_of(xp, target, rows.shape[1], ignore_index)
    weights = weights_of(xp, index, counted, weight, input.dtype)
    losses = xp.where(counted, -rows[xp.arange(len(rows)), index] * weights, 0) if len(rows) else weights
    return reduced(xp, losses, weights.sum(), target.shape, reduction, input.dtype)


def _nll_slope_composed(
    g: Tensor, input_spec: Spec, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str
) -> Tensor:
    # The loss is linear in its input: its derivative is a constant times g.
    xp = array_module(input_spec.device)
    one = xp.ones(target.shape if reduction == "none" else (), input_spec.dtype.numpy)
    weights = None if weight is None else weight._array
    constant = _nll_slope(one, raw_namespace(xp), input_spec, target._array, weights, ignore_index, reduction)
    at = g.unsqueeze(min(1, input_spec.ndim - 1)) if reduction == "none" and input_spec.ndim > 1 else g
    return at * g.new_tensor(constant)


@implements(_nll_slope_composed)
def _nll_slope(g: Any, nd: Any, input_spec: Spec, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    xp = nd.xp
    shape = input_spec.shape
    rows = xp.zeros((target.size, shape[min(1, len(shape) - 1)]), input_spec.dtype.numpy)
    index, counted = indices_of(xp, target, rows.shape[1], ignore_index)
    weights = weights_of(xp, index, counted, weight, rows.dtype)
    factor = g.reshape(-1) if reduction == "none" else g / weights.sum() if reduction == "mean" else g
    rows[xp.arange(len(rows)), index] = xp.where(counted, -weights * factor, 0)
    return from_rows(rows, shape)


NLL_LOSS = define(
    "nll_loss",
    rule=lambda input, target, weight, ignore_index, reduction: loss_rule("nll_loss", input, target, weight, reduction),
    forward=_nll_loss,
    backward=(_nll_slope, None, None),
    inputs="input target weight",
    attributes="ignore_index reduction",
)


@heard
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-input[target] for log-probabilities; shapes and errors as `cross_entropy`. The mean is weighted by the targets'
    weights.
    """
    return apply(NLL_LOSS, (input, target, optional(weight)), (ignore_index, reduction))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@NLL_LOSS.kernel("cuda")
def _nll_loss_cuda(xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    from engine.ops.loss import cuda as kernels

    targets = flat_targets(xp, target, weight, input.dtype)
    loss = kernels.nll_forward(as_planes(xp, input), *targets, ignore_index, reduction)
    return loss.reshape(target.shape if reduction == "none" else ())


def _nll_slope_cuda(
    g: Any, nd: Any, input_spec: Spec, target: Any, weight: Any, ignore_index: int, reduction: str
) -> Any:
    from engine.ops.loss import cuda as kernels

    slope = nd.xp.empty(tuple(input_spec.shape), input_spec.dtype.numpy)
    targets = flat_targets(nd.xp, target, weight, slope.dtype)
    gradient = flattened(nd.xp, g, slope.dtype)
    return kernels.nll_backward(gradient, as_planes(nd.xp, slope), *targets, ignore_index, reduction).reshape(
        slope.shape
    )


NLL_LOSS.derivative("cuda", (on_arrays(_nll_slope, _nll_slope_cuda), None, None))
