"""scaled_dot_product_attention as one operator: on the CPU by one kernel where sequences are short and without a mask
(`short.py`), else by BLAS on the operands as they lie and softmax in place on blocks that stay in cache (`blocks.py`);
on a GPU by fused kernels.

Leading axes broadcast, so grouped queries and shared keys need no copies. Source of the semantics (causal mask from the
top left, rows without a key give zeros, a boolean mask marks what may be attended):
torch.nn.functional.scaled_dot_product_attention.
"""

import math
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.calls.plan import Plan
from engine.memory import backend
from engine.ops.attention import short
from engine.ops.attention.blocks import attention_by_blocks, fits_blocks, slopes_by_blocks
from engine.ops.matmul.gpu import matmul
from engine.ops.random.dropout import keep_mask
from engine.ops.shared.operands import in_single_precision, optional, require_real
from engine.ops.softmax.operator import softmax
from engine.rules import layout
from engine.rules.dtypes import bool_
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _rule(
    query: Spec,
    key: Spec,
    value: Spec,
    mask: Spec | None,
    kept: Spec | None,
    causal: bool,
    scale: float,
    kept_scale: float,
) -> Spec:
    name = "scaled_dot_product_attention"
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    require_real(name, query)
    if query.dtype is not key.dtype or query.dtype is not value.dtype:
        raise RuntimeError(
            f"{name}: Expected query, key, and value to have the same dtype, but got query.dtype: {query.dtype} "
            f"key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise RuntimeError(
            f"{name}: Expected query, key, and value to all be at least 2 dimensional, but got query.dim: "
            f"{query.ndim} key.dim: {key.ndim} and value.dim: {value.ndim} instead."
        )
    if query.shape[-1] != key.shape[-1]:
        raise RuntimeError(f"{name}: the last size of query and key must agree, got {shapes}")
    if key.shape[-2] != value.shape[-2]:
        raise RuntimeError(f"{name}: key and value must have the same number of positions, got {shapes}")
    batch = layout.broadcast_shapes(tuple(query.shape[:-2]), tuple(key.shape[:-2]), tuple(value.shape[:-2]))
    rows = (query.shape[-2], key.shape[-2])
    if mask is not None:
        if mask.dtype is not bool_ and mask.dtype is not query.dtype:
            raise RuntimeError(
                f"{name}: Expected attn_mask dtype to be bool or to match query dtype, but got attn_mask.dtype: "
                f"{mask.dtype} and query.dtype: {query.dtype} instead."
            )
        if causal:
            raise RuntimeError(f"{name}: Explicit attn_mask should not be set when is_causal=True")
        if layout.broadcast_shapes((*batch, *rows), tuple(mask.shape)) != (*batch, *rows):
            raise RuntimeError(
                f"{name}: attn_mask of shape {list(mask.shape)} does not broadcast to the scores' {[*batch, *rows]}"
            )
    shape = (*batch, query.shape[-2], value.shape[-1])
    # PyTorch's CPU kernel for 4-D inputs gives the result the memory order of the query; its other paths are row-major.
    as_query = query.ndim == 4 and kept is None and query.shape == shape and query.stride[-1] == 1
    return query.like(shape=shape, stride=layout.preserve_strides(query.shape, query.stride) if as_query else None)


# --- any array module: the formulas -----------------------------------------------------------------------------------


def _probabilities(xp: ModuleType, query: Any, key: Any, mask: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """softmax(query keyᵀ · scale + mask) and its log-sum-exp, in whole."""
    scores = matmul(xp, query, key.swapaxes(-1, -2)) * scale
    if causal:
        scores = xp.where(xp.tri(*scores.shape[-2:], dtype=bool), scores, -xp.inf)
    if mask is not None:
        scores = xp.where(mask, scores, -xp.inf) if mask.dtype == bool else scores + mask
    if not scores.size:
        return scores, scores[..., 0] if scores.shape[-1] else xp.full(scores.shape[:-1], -xp.inf, scores.dtype)
    largest = scores.max(axis=-1, keepdims=True)
    powers = xp.exp(scores - xp.where(largest == -xp.inf, 0, largest))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / xp.where(total == 0, 1, total), (largest + xp.log(total))[..., 0]


def _attention(
    xp: ModuleType,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    kept: Any,
    causal: bool,
    scale: float,
    kept_scale: float,
) -> Any:
    kind = query.dtype
    query, key, value = (in_single_precision(array) for array in (query, key, value))
    probabilities, log_sums = _probabilities(xp, query, key, mask, causal, scale)
    dropped = probabilities if kept is None else probabilities * kept * kept_scale
    return matmul(xp, dropped, value).astype(kind, copy=False), log_sums, None


def _slopes_composed(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    kept: Tensor | None,
    causal: bool,
    scale: float,
    kept_scale: float,
) -> list[Any]:
    """The same on Tensors, so that it can be differentiated again."""
    scores = query @ key.transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(~scores.detach().new_ones(scores.shape[-2:], dtype=bool_).tril(), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is bool_ else scores + mask
    empty_rows = (scores.detach() == -math.inf).all(-1, True)
    probabilities = softmax(scores.masked_fill(empty_rows, 0.0), -1).masked_fill(empty_rows, 0.0)
    of_dropped = g @ value.transpose(-1, -2)
    dropped = probabilities
    if kept is not None:
        factors = kept.to(g.dtype) * kept_scale
        of_dropped, dropped = of_dropped * factors, probabilities * factors
    of_scores = probabilities * (of_dropped - (of_dropped * probabilities).sum(-1, True))
    wants_mask = mask is not None and mask.requires_grad
    return [
        of_scores @ key * scale,
        of_scores.transpose(-1, -2) @ query * scale,
        dropped.transpose(-1, -2) @ g,
        of_scores if wants_mask else None,
        None,
    ]


@implements(_slopes_composed)
def _slopes(
    g: Any,
    nd: Any,
    needs: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    kept: Any,
    causal: bool,
    scale: float,
    kept_scale: float,
    log_sums: Any,
    blocks: Any,
) -> list[Any]:
    xp = nd.xp
    # Hooks on what is saved may give operands back that lie otherwise than those of forward: then the other kernels
    # serve, which compute the probabilities again.
    in_blocks = isinstance(blocks, list)
    if mask is None and kept is None and not in_blocks and short.serves(query, key, value):
        return short.slopes(g, query, key, value, causal, scale, log_sums, blocks)
    if not needs[3] and fits_blocks(xp, query, key, value):
        blocks = blocks if in_blocks else None
        return slopes_by_blocks(g, query, key, value, mask, kept, causal, scale, kept_scale, log_sums, blocks)
    query, key, value, g = (in_single_precision(array) for array in (query, key, value, g))
    probabilities, _ = _probabilities(xp, query, key, mask, causal, scale)
    of_dropped = matmul(xp, g, value.swapaxes(-1, -2))
    dropped = probabilities
    if kept is not None:
        of_dropped, dropped = of_dropped * kept * kept_scale, probabilities * kept * kept_scale
    of_scores = probabilities * (of_dropped - (of_dropped * probabilities).sum(axis=-1, keepdims=True))
    of_query = matmul(xp, of_scores, key) * scale
    of_key = matmul(xp, of_scores.swapaxes(-1, -2), query) * scale
    return [of_query, of_key, matmul(xp, dropped.swapaxes(-1, -2), g), of_scores if needs[3] else None, None]


ATTENTION = define(
    "scaled_dot_product_attention",
    rule=_rule,
    forward=_attention,
    backward=_slopes,
    inputs="query key value mask kept",
    attributes="causal scale kept_scale",
    residuals="log_sums blocks",
)


@ATTENTION.kernel("cpu")
def _attention_cpu(xp: ModuleType, query: Any, key: Any, value: Any, *masks_and_attributes: Any) -> Any:
    mask, kept, causal, scale, _ = masks_and_attributes
    if mask is None and kept is None and short.serves(query, key, value):
        return short.attention(query, key, value, causal, scale)
    run = attention_by_blocks if fits_blocks(np, query, key, value) else partial(_attention, xp)
    return run(query, key, value, *masks_and_attributes)


@cache
def _on_gpu() -> Any:
    from engine.ops.attention import gpu  # no part of import engine, which it makes slower

    return gpu


@ATTENTION.kernel("cuda")
def _attention_on_gpu(
    xp: ModuleType,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    kept: Any,
    causal: bool,
    scale: float,
    kept_scale: float,
) -> Any:
    fused = _on_gpu()
    if fused.serves(query, key, value):
        return fused.forward(query, key, value, mask, kept, causal, scale, kept_scale)
    kept = fused.keep_mask(kept, query, key, value, kept_scale)
    return _attention(xp, query, key, value, mask, kept, causal, scale, kept_scale)


@ATTENTION.plans_for("cuda")
def _attention_planned(plan: Plan) -> Any:
    return _on_gpu().planned(plan)


def _on(where: Any, array: Any) -> Tensor:
    """A device array as a tensor."""
    return Tensor(array, backend.spec_of_array(array, where))


def _slopes_on_gpu_composed(
    g: Any, query: Any, key: Any, value: Any, mask: Any, kept: Any, causal: bool, scale: float, kept_scale: float
) -> list[Any]:
    fused = _on_gpu()
    whole = None
    if kept is not None:
        whole = _on(query.device, fused.keep_mask(kept._array, query, key, value, kept_scale))
    return _slopes_composed(g, query, key, value, mask, whole, causal, scale, kept_scale)


@implements(_slopes_on_gpu_composed)
def _slopes_on_gpu(
    g: Any,
    nd: Any,
    needs: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    kept: Any,
    causal: bool,
    scale: float,
    kept_scale: float,
    out: Any,
    log_sums: Any,
) -> list[Any]:
    fused = _on_gpu()
    if not needs[3] and fused.serves(query, key, value):
        return fused.slopes(g, query, key, value, mask, kept, causal, scale, kept_scale, out, log_sums)
    kept = fused.keep_mask(kept, query, key, value, kept_scale)
    return _slopes(g, nd, needs, query, key, value, mask, kept, causal, scale, kept_scale, None, None)


ATTENTION.derivative("cuda", _slopes_on_gpu)


# --- public -----------------------------------------------------------------------------------------------------------


@heard
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v over the last two axes: (..., L, E), (..., S, E), (..., S, V) -> (..., L, V).

    A boolean mask marks what may be attended, a floating one is added; `scale` defaults to 1 / sqrt(E). With
    `enable_gqa` the third axis from the end of key and value (heads) may be a divisor of the query's. Raises:
    RuntimeError naming the shapes or dtypes that do not fit.
    """
    if scale is None:
        shape = query.shape
        width = shape[-1] if shape else 0
        scale = 1 / math.sqrt(width) if width else 1.0
    if enable_gqa and query.ndim >= 3 and query.shape[-3] != key.shape[-3]:
        return _grouped(query, key, value, attn_mask, dropout_p, is_causal, scale)
    kept, kept_scale = None, 1.0
    if dropout_p:
        if not 0 <= dropout_p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")
        kept_scale = 1 / (1 - dropout_p) if dropout_p < 1 else 0.0
        if query.is_cuda:
            kept = _on(query.device, _on_gpu().draws(query.device))
        else:
            batch = layout.broadcast_shapes(tuple(query.shape[:-2]), tuple(key.shape[:-2]), tuple(value.shape[:-2]))
            kept = keep_mask((*batch, query.shape[-2], key.shape[-2]), 1 - dropout_p, query.device)
    return apply(
        ATTENTION, (query, key, value, optional(attn_mask), optional(kept)), (is_causal, float(scale), kept_scale)
    )


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, scale: float
) -> Tensor:
    """Grouped queries: heads become (groups, heads of a group), and key and value broadcast along the second."""
    heads, groups = query.shape[-3], key.shape[-3]
    if value.shape[-3] != groups or not groups or heads % groups:
        raise RuntimeError(
            "scaled_dot_product_attention: with enable_gqa the heads of key and value must agree and divide those of "
            "the query, "
            f"got query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        )
    if mask is not None and mask.ndim >= 3:
        mask = mask.unflatten(-3, (groups, heads // groups)) if mask.shape[-3] != 1 else mask.unsqueeze(-3)
    out = scaled_dot_product_attention(
        query.unflatten(-3, (groups, heads // groups)),
        key.unsqueeze(-3),
        value.unsqueeze(-3),
        mask,
        dropout_p,
        causal,
        scale,
    )
    return out.flatten(-4, -3)
