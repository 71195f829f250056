"""Classification losses over class indices as single operators: cross_entropy (softmax and logarithm fused with it) and
nll_loss.

Source: PyTorch's aten/src/ATen/native/LossNLL.cpp, for the formulas, the meaning of `weight`, `ignore_index` and
`label_smoothing`, and the errors.
"""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.namespaces import raw_namespace
from engine.calls.operator import define
from engine.memory.backend import array_module
from engine.ops.loss import kernels
from engine.ops.shared.fused import flattened, on_arrays, row_major
from engine.ops.shared.operands import in_single_precision, optional, require_real
from engine.ops.shared.windows import channels_first, channels_last, lies_channels_last
from engine.ops.softmax.operator import log_softmax, softmax
from engine.rules.dtypes import int64, uint8
from engine.rules.spec import Spec
from engine.tensor import Tensor

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(reduction: str) -> None:
    """Raises ValueError for an unknown reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction; expected one of {', '.join(REDUCTIONS)}")


def _loss_rule(name: str, input: Spec, target: Spec, weight: Spec | None, reduction: str) -> Spec:
    check_reduction(reduction)
    require_real(name, input)
    if not input.ndim:
        raise ValueError(f"{name}: Expected input with at least 1 dimension (classes), got a 0-dim tensor")
    if target.dtype is not int64 and target.dtype is not uint8:
        raise RuntimeError(f"{name}: expected target dtype to be Long or Byte (class indices), but got {target.dtype}")
    if input.ndim > 1 and (not target.ndim or target.shape[0] != input.shape[0]):
        raise ValueError(
            f"{name}: Expected input batch_size ({input.shape[0]}) to match target batch_size "
            f"({target.shape[0] if target.ndim else 'none, it is 0-dim'})."
        )
    expected = (*input.shape[:1], *input.shape[2:]) if input.ndim > 1 else ()
    if input.ndim <= 2 and target.ndim > 1:
        raise RuntimeError(
            f"{name}: 0D or 1D target tensor expected, multi-target not supported (target of shape "
            f"{list(target.shape)})"
        )
    if tuple(target.shape) != expected and not (input.ndim == 1 and target.shape == (1,)):
        raise RuntimeError(f"{name}: Expected target size {list(expected)}, got {list(target.shape)}")
    classes = input.shape[min(1, input.ndim - 1)]
    if weight is not None:
        if weight.shape != (classes,):
            raise RuntimeError(
                f"{name}: weight tensor should be defined either for all {classes} classes or no classes but got "
                f"weight tensor of shape: {list(weight.shape)}"
            )
        if weight.dtype is not input.dtype:
            raise RuntimeError(f"{name}: expected weight of dtype {input.dtype}, but found {weight.dtype}")
    return input.like(shape=target.shape if reduction == "none" else ())


def _rows(xp: ModuleType, input: Any) -> Any:
    """(N, C, d...) or (C,) as (M, C), row-major; a view where the memory allows it."""
    if input.ndim == 2:
        return xp.ascontiguousarray(input)
    classes = input.shape[min(1, input.ndim - 1)]
    moved = xp.ascontiguousarray(xp.moveaxis(input, 1, -1) if input.ndim > 2 else input)
    return (
        moved.reshape(-1, classes)
        if classes
        else moved.reshape(-1 if input.ndim == 1 else int(np.prod(moved.shape[:-1])), 0)
    )


def _from_rows(rows: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `_rows`."""
    if len(shape) <= 2:
        return rows.reshape(shape)
    return (
        rows.reshape((shape[0], *shape[2:], shape[1])).swapaxes(1, -1)
        if len(shape) == 3
        else _channels_second(rows, shape)
    )


def _channels_second(rows: Any, shape: tuple[int, ...]) -> Any:
    last = rows.reshape((shape[0], *shape[2:], shape[1]))
    return last.transpose((0, last.ndim - 1, *range(1, last.ndim - 1)))


def _indices(xp: ModuleType, target: Any, classes: int, ignore_index: int) -> tuple[Any, Any]:
    """(class of every row, 0 where it is ignored; whether it counts). Raises IndexError for a class out of range."""
    flat = target.reshape(-1).astype(np.int64, copy=False)
    counted = flat != ignore_index
    wrong = counted & ((flat < 0) | (flat >= classes))
    if bool(wrong.any()):
        raise IndexError(
            f"Target {int(flat[wrong][0])} is out of bounds: expected 0..{classes - 1} ({classes} classes) or "
            f"ignore_index {ignore_index}"
        )
    return xp.where(counted, flat, 0), counted


def _weights(xp: ModuleType, index: Any, counted: Any, weight: Any, kind: Any) -> Any:
    """The weight of every row: that of its class, 0 where it is ignored."""
    return counted.astype(kind) if weight is None else xp.where(counted, weight[index], 0).astype(kind)


def _reduce(xp: ModuleType, losses: Any, total: Any, shape: tuple[int, ...], reduction: str, kind: Any) -> Any:
    if reduction == "none":
        return losses.reshape(shape).astype(kind, copy=False)
    return xp.asarray(losses.sum() if reduction == "sum" else losses.sum() / total).astype(kind)


# --- cross_entropy ----------------------------------------------------------------------------------------------------


def _cross_entropy_rule(
    input: Spec, target: Spec, weight: Spec | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Spec:
    _check_smoothing(label_smoothing)
    return _loss_rule("cross_entropy", input, target, weight, reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")


def _cross_entropy(
    xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    rows = in_single_precision(_rows(xp, input))
    count, classes = rows.shape
    index, counted = _indices(xp, target, classes, ignore_index)
    largest = rows.max(axis=1, keepdims=True) if rows.size else rows
    log_sums = (largest + xp.log(xp.exp(rows - largest).sum(axis=1, keepdims=True))) if rows.size else rows[:, :1]
    log_probabilities = rows - log_sums
    weights = _weights(xp, index, counted, weight, rows.dtype)
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
    return _reduce(xp, losses, total, target.shape, reduction, input.dtype), log_sums.reshape(-1), total


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
    index, counted = _indices(xp, target._array, classes, ignore_index)
    weights = _weights(xp, index, counted, None if weight is None else weight._array, kind)
    hit = xp.zeros((len(index), classes), kind)
    hit[xp.arange(len(index)), index] = weights * (1 - label_smoothing)
    if label_smoothing:
        hit += (
            counted[:, None]
            * (xp.ones(classes, kind) if weight is None else weight._array)
            * (label_smoothing / classes)
        )
    wanted = input.new_tensor(_from_rows(hit, input.shape))
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
    rows = _rows(xp, input)
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
        return _from_rows(slope, input.shape)
    rows, row_g = in_single_precision(rows), in_single_precision(row_g)
    index, counted = _indices(xp, target, rows.shape[1], ignore_index)
    row_g = xp.where(counted, row_g, 0)  # g / total is not a number where everything is ignored
    at_target = row_g * _weights(xp, index, counted, weight, rows.dtype) * (1 - label_smoothing)
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
    return _from_rows(slope, input.shape)


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
    rows = _rows(np, input)
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


# --- nll_loss ---------------------------------------------------------------------------------------------------------


def _nll_loss(xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    rows = _rows(xp, input)
    index, counted = _indices(xp, target, rows.shape[1], ignore_index)
    weights = _weights(xp, index, counted, weight, input.dtype)
    losses = xp.where(counted, -rows[xp.arange(len(rows)), index] * weights, 0) if len(rows) else weights
    return _reduce(xp, losses, weights.sum(), target.shape, reduction, input.dtype)


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
    index, counted = _indices(xp, target, rows.shape[1], ignore_index)
    weights = _weights(xp, index, counted, weight, rows.dtype)
    factor = g.reshape(-1) if reduction == "none" else g / weights.sum() if reduction == "mean" else g
    rows[xp.arange(len(rows)), index] = xp.where(counted, -weights * factor, 0)
    return _from_rows(rows, shape)


NLL_LOSS = define(
    "nll_loss",
    rule=lambda input, target, weight, ignore_index, reduction: _loss_rule(
        "nll_loss", input, target, weight, reduction
    ),
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


def _planes(xp: ModuleType, array: Any) -> Any:
    """(C), (N, C) or (N, C, d...) as row-major (outer, C, inner); channels-last as (N d..., C, 1), without a copy."""
    if array.ndim > 2 and lies_channels_last(array):
        return channels_last(array).reshape(-1, array.shape[1], 1)
    outer = array.shape[0] if array.ndim > 1 else 1
    shape = (outer, array.shape[min(1, array.ndim - 1)], int(np.prod(array.shape[2:])))
    return row_major(xp, array, array.dtype, shape)


def _from_planes(planes: Any, like: Any) -> Any:
    """The inverse of `_planes`."""
    if like.ndim > 2 and lies_channels_last(like):
        return channels_first(planes.reshape(like.shape[0], *like.shape[2:], like.shape[1]))
    return planes.reshape(like.shape)


def _targets(xp: ModuleType, target: Any, weight: Any, kind: Any) -> tuple[Any, Any]:
    return flattened(xp, target, np.int64), flattened(xp, weight, kind)


@CROSS_ENTROPY.kernel("cuda")
def _cross_entropy_cuda(
    xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    from engine.ops.loss import cuda as kernels

    targets = _targets(xp, target, weight, input.dtype)
    loss, log_sums, total = kernels.cross_entropy_forward(
        _planes(xp, input), *targets, ignore_index, reduction, label_smoothing
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
    targets = _targets(xp, target, weight, input.dtype)
    divisor = total if reduction == "mean" else None
    slope = kernels.cross_entropy_backward(
        flattened(xp, g, input.dtype), _planes(xp, input), *targets, log_sums, divisor, ignore_index, label_smoothing
    )
    return _from_planes(slope, input)


CROSS_ENTROPY.derivative("cuda", (on_arrays(_cross_entropy_slope, _cross_entropy_slope_cuda), None, None))


@NLL_LOSS.kernel("cuda")
def _nll_loss_cuda(xp: ModuleType, input: Any, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    from engine.ops.loss import cuda as kernels

    targets = _targets(xp, target, weight, input.dtype)
    loss = kernels.nll_forward(_planes(xp, input), *targets, ignore_index, reduction)
    return loss.reshape(target.shape if reduction == "none" else ())


def _nll_slope_cuda(
    g: Any, nd: Any, input_spec: Spec, target: Any, weight: Any, ignore_index: int, reduction: str
) -> Any:
    from engine.ops.loss import cuda as kernels

    slope = nd.xp.empty(tuple(input_spec.shape), input_spec.dtype.numpy)
    targets = _targets(nd.xp, target, weight, slope.dtype)
    gradient = flattened(nd.xp, g, slope.dtype)
    return kernels.nll_backward(gradient, _planes(nd.xp, slope), *targets, ignore_index, reduction).reshape(slope.shape)


NLL_LOSS.derivative("cuda", (on_arrays(_nll_slope, _nll_slope_cuda), None, None))
