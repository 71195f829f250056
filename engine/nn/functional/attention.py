"""Multi-head attention: project, split into heads, attend, join, project."""

import math
import warnings

import engine
from engine import ops
from engine.nn.functional.dropping import dropout
from engine.ops import pad
from engine.tensor import Tensor


def _is_batched(
    query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> bool:
    """Whether the inputs have a batch axis. Raises AssertionError, as PyTorch, if they disagree."""
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D query tensor"
        )
    batched = query.dim() == 3
    described = f"{'batched' if batched else 'unbatched'} ({query.dim()}-D) `query`"
    if key.dim() != query.dim() or value.dim() != query.dim():
        raise AssertionError(
            f"For {described}, expected `key` and `value` to be {query.dim()}-D but found {key.dim()}-D and "
            f"{value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != query.dim() - 1:
        raise AssertionError(
            f"For {described}, expected `key_padding_mask` to be `None` or {query.dim() - 1}-D but found "
            f"{key_padding_mask.dim()}-D tensor instead"
        )
    if attn_mask is not None and attn_mask.dim() not in (2, 3):
        raise AssertionError(
            f"For {described}, expected `attn_mask` to be `None`, 2-D or 3-D but found {attn_mask.dim()}-D tensor "
            "instead"
        )
    return batched


def additive_mask(mask: Tensor | None, name: str, like: Tensor) -> Tensor | None:
    """A mask to add to scores: True becomes -inf, floating masks stay. Raises AssertionError for other dtypes."""
    if mask is None or mask.is_floating_point():
        return mask
    if mask.dtype is not engine.bool:
        raise AssertionError(f"only bool and floating types of {name} are supported")
    return engine.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of `num_heads` heads. Vaswani et al. (2017).

    Shapes: query (L, N, E), key (S, N, E_k), value (S, N, E_v), or all without N; key_padding_mask (N, S) and attn_mask
    (L, S) or (N · heads, L, S), True (or -inf) where attention is forbidden. Returns (L, N, E) and, if `need_weights`,
    the weights (N, L, S), averaged over heads or (N, heads, L, S). Raises: AssertionError or RuntimeError, where
    PyTorch does, for shapes that do not fit.
    """
    batched = _is_batched(query, key, value, key_padding_mask, attn_mask)
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, embed_dim = query.shape
    if embed_dim != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {embed_dim}")
    head_dim = embed_dim // num_heads
    if head_dim * num_heads != embed_dim:
        raise AssertionError(f"embed_dim {embed_dim} not divisible by num_heads {num_heads}")
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module method "
            "`generate_square_subsequent_mask` to create this mask."
        )
    if key_padding_mask is not None and attn_mask is not None and key_padding_mask.dtype is not attn_mask.dtype:
        warnings.warn(
            "Support for mismatched key_padding_mask and attn_mask is deprecated. Use same type for both instead.",
            stacklevel=2,
        )
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None
    else:
        is_causal = False
        attn_mask = _checked_mask(additive_mask(attn_mask, "attn_mask", query), batch * num_heads, length, key.shape[0])
    key_padding_mask = additive_mask(key_padding_mask, "key_padding_mask", query)

    if use_separate_proj_weight:
        if key.shape[:2] != value.shape[:2]:
            raise AssertionError(
                f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
            )
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        assert q_proj_weight is not None
        assert k_proj_weight is not None
        assert v_proj_weight is not None
        q = ops.linear(query, q_proj_weight, biases[0])
        k = ops.linear(key, k_proj_weight, biases[1])
        v = ops.linear(value, v_proj_weight, biases[2])
    else:
        if key.shape != value.shape:
            raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
        assert in_proj_weight is not None
        q, k, v = _project_packed(query, key, value, in_proj_weight, in_proj_bias)

    extra = 0
    if bias_k is not None and bias_v is not None:
        k = engine.cat([k, bias_k.repeat(1, batch, 1)])
        v = engine.cat([v, bias_v.repeat(1, batch, 1)])
        extra += 1

    def split(x: Tensor) -> Tensor:  # (S, N, E) -> (N, heads, S, E / heads)
        return x.reshape(x.shape[0], batch, num_heads, head_dim).permute(1, 2, 0, 3)

    q = split(q)
    k = split(k) if static_k is None else static_k.view(batch, num_heads, -1, head_dim)
    v = split(v) if static_v is None else static_v.view(batch, num_heads, -1, head_dim)
    if add_zero_attn:
        zeros = k.new_zeros(batch, num_heads, 1, head_dim)
        k, v = engine.cat([k, zeros], 2), engine.cat([v, zeros], 2)
        extra += 1
    mask = _merge_masks(attn_mask, key_padding_mask, extra, batch, num_heads, k.shape[2])
    dropout_p = dropout_p if training else 0.0

    weights = None
    if need_weights:
        scores = (q * math.sqrt(1.0 / head_dim)) @ k.transpose(-2, -1)
        weights = ops.softmax(scores if mask is None else scores + mask, -1, None)
        if dropout_p > 0.0:
            weights = dropout(weights, dropout_p)
        out = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        out = ops.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, None, False)
    out = ops.linear(out.permute(2, 0, 1, 3).reshape(length, batch, embed_dim), out_proj_weight, out_proj_bias)
    if not batched:
        out = out.squeeze(1)
        weights = None if weights is None else weights.squeeze(0)
    return out, weights


def _project_packed(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The three projections with one weight (3 E, E); one product where query, key and value are the same tensor."""
    embed_dim = q.shape[-1]
    if q is k and k is v:
        query, key, value = ops.linear(q, weight, bias).chunk(3, -1)
        return query, key, value
    if k is v:
        of_query, of_memory = weight.split([embed_dim, 2 * embed_dim])
        bias_query, bias_memory = (None, None) if bias is None else bias.split([embed_dim, 2 * embed_dim])
        memory = ops.linear(k, of_memory, bias_memory)
        key, value = memory.chunk(2, -1)
        return ops.linear(q, of_query, bias_query), key, value
    biases = (None, None, None) if bias is None else bias.chunk(3)
    inputs = zip((q, k, v), weight.chunk(3), biases, strict=True)
    return tuple(ops.linear(*each) for each in inputs)  # type: ignore[return-value]


def _checked_mask(mask: Tensor | None, rows: int, length: int, source: int) -> Tensor | None:
    if mask is None:
        return None
    expected = (length, source) if mask.dim() == 2 else (rows, length, source)
    if tuple(mask.shape) != expected:
        raise RuntimeError(f"The shape of the {mask.dim()}D attn_mask is {mask.shape}, but should be {expected}.")
    return mask


def _merge_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, extra: int, batch: int, heads: int, source: int
) -> Tensor | None:
    """One additive mask that broadcasts to (N, heads, L, S); the `extra` keys added at the end are always visible."""
    if attn_mask is not None:
        attn_mask = pad(attn_mask, (0, extra)) if extra else attn_mask
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.view(batch, heads, -1, source)
    if key_padding_mask is None:
        return attn_mask
    if key_padding_mask.shape[0] != batch or key_padding_mask.shape[1] + extra != source:
        raise AssertionError(
            f"Expected key_padded_mask.shape to be ({batch}, {source - extra}), but got {tuple(key_padding_mask.shape)}"
        )
    key_padding_mask = pad(key_padding_mask, (0, extra)) if extra else key_padding_mask
    key_padding_mask = key_padding_mask.view(batch, 1, 1, source)
    return key_padding_mask if attn_mask is None else attn_mask + key_padding_mask
