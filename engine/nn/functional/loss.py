"""Losses for regression and for classification, composed from primitives; `reduction` is "none", "mean" or "sum"."""

import math
import warnings

import engine
from engine import ops
from engine.calls.listening import heard
from engine.tensor import Tensor


def reduction_name(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction asked for; the two flags are PyTorch's old way to say it and win where given."""
    if size_average is None and reduce is None:
        return reduction
    if reduce is False:
        return "none"
    return "sum" if size_average is False else "mean"


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """`loss` reduced. Raises ValueError for an unknown reduction."""
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction")


@heard
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target].

    Shapes: input (C), (N, C) or (N, C, d...); target of class indices without the C axis, or of probabilities like
    input.
    """
    if size_average is not None or reduce is not None:
        reduction = reduction_name(size_average, reduce, reduction)
    return ops.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


@heard
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-input[target] for log-probabilities (N, C, d...) and class indices (N, d...); a weighted mean with `weight`."""
    return ops.nll_loss(input, target, weight, ignore_index, reduction_name(size_average, reduce, reduction))


@heard
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)) for probabilities x; logarithms are clamped at -100 as in PyTorch.

    Raises: ValueError if the shapes differ; RuntimeError if an input lies outside [0, 1] (on a GPU, which is not waited
    for, the result is not a number then).
    """
    if target.shape != input.shape:
        raise ValueError(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}) is deprecated. "
            "Please ensure they have the same size."
        )
    if input.is_cpu and not bool(((input >= 0) & (input <= 1)).all()):
        raise RuntimeError(
            "binary_cross_entropy: all elements of input should be between 0 and 1; logits belong in "
            "binary_cross_entropy_with_logits"
        )
    loss = (target - 1) * _clamped_log(1 - input) - target * _clamped_log(input)
    if weight is not None:
        loss = loss * weight
    return reduced(loss, reduction_name(size_average, reduce, reduction))


def _clamped_log(x: Tensor) -> Tensor:
    """max(log x, -100) with PyTorch's derivative, which has 1e-12 in place of smaller x in the denominator."""
    small = (x.detach() < 1e-12) & (x.detach() >= 0)
    if x.device.type == "meta" or (x.is_cpu and not bool(small.any())):
        return x.log().clamp(min=-100.0)
    # In value this is the clamped logarithm, in derivative 1 / 1e-12 below the limit.
    at_limit = (x / 1e-12) + (x.detach().log().clamp(min=-100.0) - (x / 1e-12).detach())
    safe = engine.where(small, engine.ones_like(x), x)
    return engine.where(small, at_limit, safe.log())


@heard
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy of σ(input), without overflow; `pos_weight` multiplies the positive term.

    Raises: ValueError if the shapes differ.
    """
    if target.shape != input.shape:
        raise ValueError(f"Target size ({target.shape}) must be the same as input size ({input.shape})")
    log_probability = ops.logsigmoid(input)
    if pos_weight is None:
        loss = (1 - target) * input - log_probability
    else:
        loss = (1 - target) * input - ((pos_weight - 1) * target + 1) * log_probability
    if weight is not None:
        loss = loss * weight
    return reduced(loss, reduction_name(size_average, reduce, reduction))


@heard
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """t (log t - input) for log-probabilities `input`; "batchmean" divides the sum by the batch size, as the
    mathematics does.
    """
    if size_average is None and reduce is None and reduction == "mean":
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size. 'batchmean' "
            "divides only by the batch size, and aligns with the KL div math definition.",
            stacklevel=2,
        )
    loss = target.exp() * (target - input) if log_target else _times_log(target) - target * input
    reduction = reduction_name(size_average, reduce, reduction)
    if reduction != "batchmean":
        return reduced(loss, reduction)
    return loss.sum() / input.shape[0] if input.dim() else loss.sum()


def _times_log(x: Tensor) -> Tensor:
    """x log x, 0 at 0."""
    zero = x.eq(0)
    return engine.where(zero, engine.zeros_like(x), x * engine.where(zero, engine.ones_like(x), x).log())


def _warn_if_broadcast(input: Tensor, target: Tensor) -> None:
    if target.shape != input.shape:
        warnings.warn(
            f"Using a target size ({target.shape}) that is different to the input size ({input.shape}). This will "
            "likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
            stacklevel=3,
        )


def _weighted(loss: Tensor, input: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """`loss` times `weight`, the mean taken over the weights."""
    if weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")
    loss = loss * weight
    return loss.sum() / weight.sum() if reduction == "mean" else reduced(loss, reduction)


@heard
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target)²; warns if the shapes differ."""
    _warn_if_broadcast(input, target)
    difference = input - target
    reduction = reduction_name(size_average, reduce, reduction)
    loss = difference * difference
    return reduced(loss, reduction) if weight is None else _weighted(loss, input, weight, reduction)


@heard
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|; warns if the shapes differ."""
    _warn_if_broadcast(input, target)
    reduction = reduction_name(size_average, reduce, reduction)
    loss = (input - target).abs()
    return reduced(loss, reduction) if weight is None else _weighted(loss, input, weight, reduction)


@heard
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """d²/(2 beta) where d = |input - target| < beta, else d - beta/2. Raises RuntimeError if beta is negative."""
    _warn_if_broadcast(input, target)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    reduction = reduction_name(size_average, reduce, reduction)
    distance = (input - target).abs()
    if beta == 0:
        return reduced(distance, reduction)
    near = engine.where(distance > beta, beta, distance)  # squared everywhere, and finite for infinite distances
    return reduced(near * near * (0.5 / beta) + (distance - near), reduction)


@heard
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """d²/2 where d = |input - target| < delta, else delta (d - delta/2). Raises RuntimeError unless delta > 0."""
    _warn_if_broadcast(input, target)
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    distance = (input - target).abs()
    near = engine.where(distance > delta, delta, distance)
    loss = near * near * 0.5 + (distance - near) * delta
    return reduced(loss, reduction) if weight is None else _weighted(loss, input, weight, reduction)


@heard
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target · input (or its form for rates, `log_input=False`), with Stirling's term if `full`."""
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + 0.5 * (2 * math.pi * target).log()
        loss = loss + engine.where(target > 1, stirling, engine.zeros_like(stirling))
    return reduced(loss, reduction_name(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """(log var + (input - target)² / var) / 2 with var at least eps, plus log(2π) / 2 if `full`.

    Raises: ValueError if var is negative (in host memory: a GPU is not waited for) or its shape is neither input's, nor
    input's without the last axis or with one axis of size 1.
    """
    spread = var if isinstance(var, Tensor) else engine.full_like(input, var)
    if spread.is_cpu and bool((spread < 0).any()):
        raise ValueError("var has negative entry/entries")
    if spread.shape != input.shape:
        shapes = zip(input.shape, spread.shape, strict=False)
        if tuple(input.shape[:-1]) == tuple(spread.shape):
            spread = spread.unsqueeze(-1)
        elif spread.dim() != input.dim() or [own for wanted, own in shapes if own != wanted] != [1]:
            raise ValueError(f"var is of incorrect size: got {tuple(spread.shape)} for input {tuple(input.shape)}")
    # at least eps in value, the derivative that of var itself
    raised = spread + (spread.detach().clamp(min=eps) - spread.detach())
    loss = 0.5 * (raised.log() + (input - target) ** 2 / raised)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction)
