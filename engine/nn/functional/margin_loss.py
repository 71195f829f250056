"""Margin and embedding losses: ranking, hinge, triplets, multi-label; composed from primitives."""

from collections.abc import Callable

import engine
from engine import ops
from engine.calls.listening import heard
from engine.nn.functional.distance import pairwise_distance
from engine.nn.functional.loss import reduced, reduction_name
from engine.ops.loss.rows import check_reduction
from engine.tensor import Tensor


@heard
def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -t (x1 - x2) + margin) for t = 1 (x1 should be larger) or -1. RuntimeError if the dimensions differ."""
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.size()}, input2: {input2.size()}, target: {target.size()} "
        )
    loss = (-target * (input1 - input2) + margin).clamp(min=0)
    return reduced(loss, reduction_name(size_average, reduce, reduction))


@heard
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where t = 1, max(0, margin - x) where t = -1."""
    zero = engine.zeros_like(input)
    loss = engine.where(target.ne(1), (margin - input).clamp(min=0), zero) + engine.where(target.ne(-1), input, zero)
    return reduced(loss, reduction_name(size_average, reduce, reduction))


@heard
def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-t x))."""
    return reduced(-ops.logsigmoid(target * input), reduction_name(size_average, reduce, reduction))


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross-entropy with logits, averaged over the classes (last axis) of (N, C) or (C)."""
    loss = -(target * ops.logsigmoid(input) + (1 - target) * ops.logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return reduced(loss.sum(-1) / input.shape[-1], reduction_name(size_average, reduce, reduction))


@heard
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Σ_j max(0, margin - x[t] + x[j])^p / C over j ≠ t, for (N, C) and (N), or (C) and ().

    Raises: ValueError for another p than 1 and 2 or a weight that is not one a class.
    """
    reduction = reduction_name(size_average, reduce, reduction)
    check_reduction(reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError("weight must be one-dimensional")
    single = input.dim() <= 1
    rows = input.reshape(1, -1) if single else input
    indices = target.reshape(-1, 1)
    terms = (margin - rows.gather(1, indices) + rows).clamp(min=0)
    if p == 2:
        terms = terms * terms
    if weight is not None:
        terms = terms * weight[indices]
    others = engine.ones_like(terms).scatter_(1, indices, 0.0)
    loss = (terms * others).sum(1) / rows.shape[1]
    return reduced(loss[0] if single else loss, reduction)


@heard
def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Σ_ij max(0, 1 - x[t_j] + x[i]) / C over targets t_j and non-targets i.

    Shapes: input and target (N, C) or (C); the targets of a row are its entries before the first -1. Raises:
    RuntimeError if the shapes differ.
    """
    reduction = reduction_name(size_average, reduce, reduction)
    check_reduction(reduction)
    if input.shape != target.shape:
        raise RuntimeError(
            f"multilabel_margin_loss: inconsistent target size: {target.size()} for input of size: {input.size()}"
        )
    single = input.dim() <= 1
    rows, labels = (input.reshape(1, -1), target.reshape(1, -1)) if single else (input, target)
    listed = ((labels < 0).cumsum(1) == 0).to(rows.dtype)
    indices = labels.clamp(min=0)
    is_target = engine.zeros_like(rows).scatter_add_(1, indices, listed).clamp(max=1)
    of_targets = rows.gather(1, indices)
    terms = (1 - of_targets.unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0)
    loss = (terms * listed.unsqueeze(2) * (1 - is_target).unsqueeze(1)).sum((1, 2)) / rows.shape[1]
    return reduced(loss[0] if single else loss, reduction)


@heard
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(x1, x2) where t = 1, max(0, cos(x1, x2) - margin) where t = -1; for (N, D) and (N), or (D) and ()."""
    epsilon = 1e-12
    product = (input1 * input2).sum(-1)
    squares = ((input1 * input1).sum(-1) + epsilon) * ((input2 * input2).sum(-1) + epsilon)
    cosine = product / squares.sqrt()
    zero = engine.zeros_like(cosine)
    loss = engine.where(target.eq(1), 1 - cosine, zero) + engine.where(
        target.eq(-1), (cosine - margin).clamp(min=0), zero
    )
    return reduced(loss, reduction_name(size_average, reduce, reduction))


@heard
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(a, p) - d(a, n) + margin) with d the p-norm distance; `swap` takes the nearer of a and p to n.

    Raises: ValueError unless margin > 0.
    """

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=distance,
        margin=margin,
        swap=swap,
        reduction=reduction_name(size_average, reduce, reduction),
    )


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with any distance. Raises ValueError unless margin > 0."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return reduced((near - far + margin).clamp(min=0), reduction)
