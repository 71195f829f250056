"""cross_entropy over class indices as one operator: softmax and logarithm fused with it.

Source: PyTorch's aten/src/ATen/native/LossNLL.cpp, for the formula, the errors, and what `weight`, `ignore_index` and
`label_smoothing` mean.
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.memory.backend import array_module
from engine.ops.loss import kernels
from engine.ops.loss.rows import (
    as_planes,
    as_rows,
    check_reduction,
    flat_targets,
    from_planes,
    from_rows,
    indices_of,
    loss_rule,
    reduced,
    weights_of,
)
from engine.ops.shared.fused import flattened, on_arrays
from engine.ops.shared.operands import in_single_precision, optional
from engine.ops.softmax.operator import log_softmax, softmax
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _cross_entropy_rule(
    input: Spec, target: Spec, weight: Spec | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Spec:
    _check_smoothing(label_smoothing)
    return loss_rule("cross_entropy", input, target, weight, reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")


def _cross_entropy(
    xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    rows = in_single_precision(as_rows(xp, input))
    count, classes = rows.shape
    index, counted = indices_of(xp, target, classes, ignore_index)
    largest = rows.max(axis=1, keepdims=True) if rows.size else rows
    log_sums = (largest + xp.log(xp.exp(rows - largest).sum(axis=1, keepdims=True))) if rows.size else rows[:, :1]
    log_probabilities = rows - log_sums
    weights = weights_of(xp, index, counted, weight, rows.dtype)
    # where, not a product: an ignored row may hold infinities
    losses = (
        xp.where(counted, -weights * log_probabilities[xp.arange(count), index] * (1 - label_smoothing), 0)
        if count
        else weights
    )
    if label_smoothing:
        spread = log_probabilities.sum(axis=1) if weight is None else log_probabilities @ weight.astype(rows.dtype)
        losses = xp.where(counted, losses - spread * (label_smoothing / classes), 0)
    total = weights.sum()
    return reduced(xp, losses, total, target.shape, reduction, input.dtype), log_sums.reshape(-1), total


def _cross_entropy_slope_composed(
    g: Any,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """The same from softmax and constants, so that it can be differentiated again."""
    xp = array_module(input.device)
    class_dim = min(1, input.ndim - 1)
    classes = input.shape[class_dim]
    kind = input.dtype.numpy
    index, counted = indices_of(xp, target._array, classes, ignore_index)
    weights = weights_of(xp, index, counted, None if weight is None else weight._array, kind)
    hit = xp.zeros((len(index), classes), kind)
    hit[xp.arange(len(index)), index] = weights * (1 - label_smoothing)
    if label_smoothing:
        hit += (
            counted[:, None]
            * (xp.ones(classes, kind) if weight is None else weight._array)
            * (label_smoothing / classes)
        )
    wanted = input.new_tensor(from_rows(hit, input.shape))
    position = (
        g.reshape(target.shape).unsqueeze(class_dim)
        if reduction == "none"
        else g / input.new_tensor(xp.where((total := weights.sum()) == 0, 1, total))  # where all are ignored: 0
        if reduction == "mean"
        else g
    )
    return position * (softmax(input, class_dim) * wanted.sum(class_dim, True) - wanted)


@implements(_cross_entropy_slope_composed)
def _cross_entropy_slope(
    g: Any,
    nd: Any,
    input: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    log_sums: Any,
    total: Any,
) -> Any:
    xp = nd.xp
    rows = as_rows(xp, input)
    row_g = xp.ascontiguousarray(g).reshape(-1)  # one a row, or one for all of them
    if reduction == "mean":
        row_g = row_g / total
    if _kernels_serve(xp, rows):
        slope = kernels.cross_entropy_backward(
            row_g,
            rows,
            np.ascontiguousarray(target).reshape(-1),
            log_sums,
            _flat_weight(weight),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        return from_rows(slope, input.shape)
    rows, row_g = in_single_precision(rows), in_single_precision(row_g)
    index, counted = indices_of(xp, target, rows.shape[1], ignore_index)
    row_g = xp.where(counted, row_g, 0)  # g / total is not a number where everything is ignored
    at_target = row_g * weights_of(xp, index, counted, weight, rows.dtype) * (1 - label_smoothing)
    spread = row_g * (label_smoothing / rows.shape[1]) if label_smoothing else None
    factor = (
        at_target
        if spread is None
        else at_target + spread * (rows.shape[1] if weight is None else weight.astype(rows.dtype).sum())
    )
    slope = xp.exp(rows - log_sums[:, None]) * factor[:, None]
    slope[xp.arange(len(rows)), index] -= at_target
    if spread is not None:
        slope -= spread[:, None] if weight is None else spread[:, None] * weight.astype(rows.dtype)
    return from_rows(slope, input.shape)


CROSS_ENTROPY = define(
    "cross_entropy",
    rule=_cross_entropy_rule,
    forward=_cross_entropy,
    backward=(_cross_entropy_slope, None, None),
    inputs="input target weight",
    attributes="ignore_index reduction label_smoothing",
    residuals="log_sums total",
)


def _kernels_serve(xp: ModuleType, rows: Any) -> bool:
    return xp is np and rows.dtype.char in "fd"


def _flat_target(target: Any) -> Any:
    return np.ascontiguousarray(target if target.dtype == np.int64 else target.astype(np.int64)).reshape(-1)


def _flat_weight(weight: Any) -> Any:
    return None if weight is None else np.ascontiguousarray(weight)


@CROSS_ENTROPY.kernel("cpu")
def _cross_entropy_cpu(
    xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    # 8 x 10 float32: 1.7 µs where the NumPy passes take 12; 1024 x 256: 170 µs against 520. Only the log-sum-exp is
    # kept for backward.
    rows = as_rows(np, input)
    if not _kernels_serve(np, rows):
        return _cross_entropy(xp, input, target, weight, ignore_index, reduction, label_smoothing)
    losses, log_sums, total, loss = kernels.cross_entropy_sums(
        rows, _flat_target(target), _flat_weight(weight), ignore_index, label_smoothing
    )
    if reduction == "none":
        return losses.reshape(target.shape), log_sums, total
    if reduction == "mean":
        loss = loss / total if total else np.nan
    return np.array(loss, rows.dtype), log_sums, total


@heard
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target], softmax, logarithm and loss in one operator.

    On a GPU, where an error would have to wait for the device, a class out of range gives NaN in its row's loss and
    gradient.

    Shapes: input (C), (N, C) or (N, C, d...); target of class indices (int64) without the class axis, or of
    probabilities like input. Raises: ValueError for batch sizes that differ or an unknown reduction; IndexError for a
    class out of range; RuntimeError for other shapes, and an `ignore_index` beside probabilities.
    """
    try:
        of_probabilities = target._spec.dtype.category >= 2 and target._spec.shape == input._spec.shape
    except AttributeError:
        name, given = ("target", target) if isinstance(input, Tensor) else ("input", input)
        raise TypeError(f"cross_entropy(): argument '{name}' must be Tensor, not {type(given).__name__}") from None
    if of_probabilities:
        if ignore_index >= 0:
            raise RuntimeError(
                f"cross_entropy: ignore_index is not supported for floating point target, got ignore_index="
                f"{ignore_index}; give those rows probabilities of 0"
            )
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    return apply(CROSS_ENTROPY, (input, target, optional(weight)), (ignore_index, reduction, label_smoothing))


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    """Cross-entropy with class probabilities, composed."""
    check_reduction(reduction)
    _check_smoothing(label_smoothing)
    class_dim = min(1, input.ndim - 1)
    classes = input.shape[class_dim]
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(
            f"cross_entropy: weight tensor should be defined either for all {classes} classes or no classes but got "
            f"weight tensor of shape: {list(weight.shape)}"
        )
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = log_softmax(input, class_dim) * target
    if weight is not None:
        terms = terms * weight.reshape((-1,) + (1,) * (input.ndim - 1 - class_dim))
    if reduction == "none":
        return -terms.sum(class_dim)
    return -terms.sum() if reduction == "sum" else -terms.sum() / (input.numel() / classes)


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@CROSS_ENTROPY.kernel("cuda")
def _cross_entropy_cuda(
    xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    from engine.ops.loss import cuda as kernels

    targets = flat_targets(xp, target, weight, input.dtype)
    loss, log_sums, total = kernels.cross_entropy_forward(
        as_planes(xp, input), *targets, ignore_index, reduction, label_smoothing
    )
    return loss.reshape(target.shape if reduction == "none" else ()), log_sums, total


def _cross_entropy_slope_cuda(
    g: Any,
    nd: Any,
    input: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    log_sums: Any,
    total: Any,
) -> Any:
    from engine.ops.loss import cuda as kernels

    xp = nd.xp
    targets = flat_targets(xp, target, weight, input.dtype)
    divisor = total if reduction == "mean" else None
    slope = kernels.cross_entropy_backward(
        flattened(xp, g, input.dtype), as_planes(xp, input), *targets, log_sums, divisor, ignore_index, label_smoothing
    )
    return from_planes(slope, input)


CROSS_ENTROPY.derivative("cuda", (on_arrays(_cross_entropy_slope, _cross_entropy_slope_cuda), None, None))
