"""Samples of convolutions, pooling, normalisation, attention and losses."""

import math

import numpy as np

import engine
import engine.nn.functional as F
from engine.ops.rnn.operator import recurrence
from engine.ops.shared.windows import ConvWindow
from tests.op_samples.table import Array, X, add, distinct, draw, raw, whole

_IMAGES = draw(2, 4, 5, 6)


def _convolution(x: Array, w: Array, b: Array | None = None, padding: int = 0) -> Array:
    """Any number of spatial axes, stride 1, by the definition."""
    count = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * count))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], tuple(range(2, x.ndim)))
    letters = "xyz"[:count]
    out = np.einsum(f"nc{letters}{letters.upper()},oc{letters.upper()}->no{letters}", windows, w)
    return out if b is None else out + b.reshape(-1, *(1,) * count)


for _spatial in ((6,), (5, 6), (3, 4, 3)):
    _conv = getattr(F, f"conv{len(_spatial)}d")
    _back = getattr(F, f"conv_transpose{len(_spatial)}d")
    _image, _kernel = draw(2, 4, *_spatial), (3, 2, 2)[: len(_spatial)]
    add(
        "conv",
        lambda x, w, b, f=_conv: f(x, w, b, padding=1),
        _image,
        draw(3, 4, *_kernel),
        draw(3),
        reference=lambda x, w, b: _convolution(x, w, b, 1),
    )
    add("conv", lambda x, w, f=_conv: f(x, w, stride=2), _image, draw(3, 4, *_kernel))
    add("conv", lambda x, w, f=_conv: f(x, w, groups=2, dilation=2, padding=2), _image, draw(6, 2, *_kernel))
    add(
        "conv_transposed",
        lambda x, w, b, f=_back: f(x, w, b, stride=2, padding=1),
        _image,
        draw(4, 3, *_kernel),
        draw(3),
    )
    add("conv_transposed", lambda x, w, f=_back: f(x, w, groups=2, output_padding=0), _image, draw(4, 2, *_kernel))
add(
    "conv",
    lambda x, w: F.conv2d(x, w),
    np.zeros((0, 4, 5, 6)),
    draw(3, 4, 2, 2),
    reference=lambda x, w: np.zeros((0, 3, 4, 5)),
)
add("conv", lambda x, w: F.conv2d(x, w, groups=4, padding=1), _IMAGES, draw(4, 1, 3, 3))


_MOVES = ConvWindow((1, 1), (0, 0), (1, 1), 1)
add("conv_weight_gradient", raw("conv_weight_gradient", _MOVES, (3, 4, 2, 3), (24, 6, 3, 1)), draw(2, 3, 4, 4), _IMAGES)
add(
    "conv_weight_gradient", raw("conv_weight_gradient", _MOVES, (3, 4, 2, 3), (24, 1, 12, 4)), draw(2, 3, 4, 4), _IMAGES
)

_POOLED = distinct(2, 3, 5, 6)
for _name, _function in {
    "avg_pool": lambda x: F.avg_pool2d(x, 2, padding=1, ceil_mode=True, count_include_pad=False),
    "max_pool": lambda x: F.max_pool2d(x, 3, stride=2, padding=1),
    "max_pool_with_indices": lambda x: F.max_pool2d(x, 2, ceil_mode=True, return_indices=True),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, (2, 4), return_indices=True),
    "resample": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
    "im2col": lambda x: F.unfold(x, 2, dilation=2, padding=1, stride=2),
}.items():
    add(_name, _function, _POOLED)
add(
    "avg_pool",
    lambda x: F.avg_pool1d(x, 3, stride=1),
    draw(2, 3, 6),
    reference=lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2).mean(-1),
)
add("avg_pool", lambda x: F.avg_pool3d(x, 2), draw(1, 2, 2, 4, 2))
add(
    "max_pool",
    lambda x: F.max_pool1d(x, 3, stride=1),
    distinct(2, 3, 6),
    reference=lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2).max(-1),
)
add("max_pool", lambda x: F.max_pool3d(x, 2, dilation=1), distinct(1, 2, 2, 4, 2))
add("resample", lambda x: F.interpolate(x, size=(3, 9), mode="nearest"), _POOLED)
add("resample", lambda x: F.interpolate(x, size=(3, 9), mode="bicubic", align_corners=True), _POOLED)
add("resample", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), _POOLED)
add("col2im", lambda x: F.fold(x, (4, 5), 2, stride=1), draw(2, 8, 12))
_WINDOW = ((2, 2), (2, 2), (0, 0), False, True, None)
add("avg_pool_gradient", raw("avg_pool_gradient", (4, 6), *_WINDOW, engine.contiguous_format), draw(2, 3, 2, 3))
add("pool_scatter", raw("pool_scatter", (4, 6), engine.contiguous_format), draw(2, 3, 2, 3), whole(0, 24, 2, 3, 2, 3))
add(
    "pool_gather",
    raw("pool_gather", (4, 6)),
    draw(2, 3, 4, 6),
    whole(0, 24, 2, 3, 2, 3),
    reference=lambda x, i: np.take_along_axis(x.reshape(2, 3, 24), i.reshape(2, 3, 6), 2).reshape(2, 3, 2, 3),
)


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


for _shape in [(4, 3), (2, 3, 4), (2, 3, 2, 4)]:
    _columns = (-1, *(1,) * (len(_shape) - 2))
    _others = (0, *range(2, len(_shape)))
    add(
        "batch_norm_training",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True, eps=0.1),
        draw(*_shape),
        draw(3),
        draw(3),
        reference=lambda x, w, b, o=_others, c=_columns: _normalised(x, o, 0.1) * w.reshape(c) + b.reshape(c),
    )
    add(
        "batch_norm_inference",
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=False, eps=0.1),
        draw(*_shape),
        draw(3),
        draw(3),
        draw(3),
        draw(3, low=0.5, high=2.0),
        reference=lambda x, w, b, m, v, c=_columns: (
            (x - m.reshape(c)) / np.sqrt(v.reshape(c) + 0.1) * w.reshape(c) + b.reshape(c)
        ),
        constants=(3, 4),
    )
add(
    "batch_norm_training",
    lambda x: F.batch_norm(x, None, None, training=True),
    draw(5, 3),
    reference=lambda x: _normalised(x, (0,), 1e-5),
)
for _shape in [(4, 5), (2, 3, 5), (2, 2, 3, 5), (0, 5)]:
    add(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (5,), w, b, 0.1),
        draw(*_shape),
        draw(5),
        draw(5),
        reference=lambda x, w, b: _normalised(x, (-1,), 0.1) * w + b,
    )
    add(
        "rms_norm",
        lambda x, w: F.rms_norm(x, (5,), w, 0.1),
        draw(*_shape),
        draw(5),
        reference=lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.1) * w,
    )
add("layer_norm", lambda x: F.layer_norm(x, (3, 4)), X, reference=lambda x: _normalised(x, (1, 2), 1e-5))
for _shape in [(2, 4, 3), (2, 4, 3, 2)]:
    add("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b, 0.1), draw(*_shape), draw(4), draw(4))
    add(
        "group_norm",
        lambda x: F.group_norm(x, 2, eps=0.1),
        draw(*_shape),
        reference=lambda x: _normalised(x.reshape(2, 2, -1), (2,), 0.1).reshape(x.shape),
    )
add("masked_scale", raw("masked_scale", 2.0), X, whole(0, 2, 2, 3, 4).astype(bool), reference=lambda x, m: x * m * 2)


def _attention(q: Array, k: Array, v: Array) -> Array:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True) @ v


_QUERY, _KEY, _VALUE = draw(2, 3, 4, 5), draw(2, 3, 6, 5), draw(2, 3, 6, 2)
add("scaled_dot_product_attention", F.scaled_dot_product_attention, _QUERY, _KEY, _VALUE, reference=_attention)
add(
    "scaled_dot_product_attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    draw(2, 4, 5),
    draw(2, 4, 5),
    draw(2, 4, 3),
)
add(
    "scaled_dot_product_attention",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
    _QUERY,
    _KEY,
    _VALUE,
    draw(4, 6),
)

_LOGITS, _CLASSES = draw(4, 5), np.array([1, 0, 4, 2])
_CLASS_WEIGHTS = draw(5, low=0.5, high=2.0)


def _losses(x: Array, target: Array) -> Array:
    logarithms = x - np.log(np.exp(x).sum(1, keepdims=True))
    return -logarithms[np.arange(len(target)), target]


add("cross_entropy", lambda x, t: F.cross_entropy(x, t), _LOGITS, _CLASSES, reference=lambda x, t: _losses(x, t).mean())
add(
    "cross_entropy",
    lambda x, t: F.cross_entropy(x, t, reduction="none", ignore_index=0),
    _LOGITS,
    _CLASSES,
    reference=lambda x, t: np.where(t == 0, 0, _losses(x, t)),
)
add(
    "cross_entropy",
    lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.2),
    _LOGITS,
    _CLASSES,
    _CLASS_WEIGHTS,
    constants=(2,),
)
add("cross_entropy", lambda x, t: F.cross_entropy(x, t), draw(2, 5, 3), whole(0, 5, 2, 3))
add(
    "cross_entropy",
    lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    np.zeros((0, 5)),
    np.zeros(0, np.int64),
    reference=lambda x, t: np.zeros(()),
)
add("nll_loss", lambda x, t: F.nll_loss(x, t), _LOGITS, _CLASSES, reference=lambda x, t: -x[np.arange(4), t].mean())
add("nll_loss", lambda x, t, w: F.nll_loss(x, t, w, reduction="sum"), _LOGITS, _CLASSES, _CLASS_WEIGHTS, constants=(2,))
add("nll_loss", lambda x, t: F.nll_loss(x, t, reduction="none"), draw(2, 5, 3, 2), whole(0, 5, 2, 3, 2))

# --- recurrence -------------------------------------------------------------------------------------------------------

for _mode, _gates, _states in (("lstm", 4, 2), ("gru", 3, 1), ("rnn_tanh", 1, 1), ("rnn_relu", 1, 1)):
    _start = [draw(2, 3, low=-0.5, high=0.5) for _ in range(_states)]
    _weights = [draw(_gates * 3, width, low=-0.5, high=0.5) for width in (4, 3)]
    for _backwards in (False, True):
        add(
            _mode,
            lambda x, *others, m=_mode, n=_states, b=_backwards: recurrence(m, x, others[:n], *others[n:], backwards=b)[
                0
            ],
            draw(3, 2, 4),
            *_start,
            *_weights,
            draw(_gates * 3),
            draw(_gates * 3),
        )
    add(
        _mode,
        lambda x, *others, m=_mode, n=_states: recurrence(m, x, others[:n], *others[n:], None, None)[1],
        draw(2, 2, 4),
        *_start,
        *_weights,
    )
