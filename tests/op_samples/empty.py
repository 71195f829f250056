"""Samples without elements, for operators that have none in the file of their family. `REFUSED`: operators that need
elements, and why.
"""

import numpy as np

import engine
import engine.linalg
import engine.nn.functional as F
from engine.ops.shared.windows import ConvWindow
from tests.op_samples.table import Array, add, fixed, raw

F64, NONE = engine.float64, np.zeros
PLACES = np.zeros((0, 2), np.int64)


def _places(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


for _name, _attributes, _arrays in [
    ("mean", ((1,), False, F64), [NONE((0, 3))]),
    ("amax", ((1,), False, F64), [NONE((0, 3))]),
    ("amin", ((1,), True, F64), [NONE((0, 3))]),
    ("var", ((1,), False, F64, 1), [NONE((0, 3))]),
    ("std", ((1,), True, F64, 0), [NONE((0, 3))]),
    ("vector_norm", (2.0, (1,), False), [NONE((0, 3))]),
    ("vector_norm", (3.0, (0,), False), [NONE((0, 3))]),
    ("sort", (1, False), [NONE((0, 3))]),
    ("topk", (2, 1, True, True), [NONE((0, 3))]),
    ("kthvalue", (2, 1, False), [NONE((0, 3))]),
    ("median_dim", (0, 1, False), [NONE((0, 3))]),
    ("mode", (0, 1, True), [NONE((0, 3))]),
    ("permute", ((1, 0),), [NONE((0, 3))]),
    ("select", (1, 2), [NONE((0, 3))]),
    ("slice", (1, 0, 2, 1), [NONE((0, 3))]),
    ("split", ((1, 2), 1), [NONE((0, 3))]),
    ("split_with_sizes", ((1, 2), 1), [NONE((0, 3))]),
    ("unbind", (1,), [NONE((0, 3))]),
    ("squeeze", ((1,),), [NONE((0, 1))]),
    ("unsqueeze", (1,), [NONE((0, 3))]),
    ("diagonal", (0, 0, 1), [NONE((0, 3))]),
    ("unfold", (1, 2, 1), [NONE((0, 3))]),
    ("flip", ((0, 1),), [NONE((0, 3))]),
    ("tril", (0,), [NONE((0, 3))]),
    ("triu", (0,), [NONE((3, 0))]),
    ("constant_pad_nd", ((1, 1), 0.5), [NONE((0, 3))]),
    ("view_backward", ("select", (1, 2), (0, 3), False), [NONE((0,))]),
    ("as_strided_gather", ((0, 3), (3, 1), (0, 2), (3, 1), 0), [NONE((0, 3))]),
    ("gather", (1,), [NONE((0, 3)), _places(0, 2)]),
    ("gather", (1,), [NONE((2, 3)), _places(2, 0)]),
    ("scatter", (1,), [NONE((2, 3)), _places(2, 0), NONE((2, 0))]),
    ("scatter_add_zeros", ((2, 3), 1), [NONE((2, 0)), _places(2, 0)]),
    ("scatter_zeros", ((2, 3), 1), [NONE((2, 0)), _places(2, 0)]),
    ("scatter_reduce", (1, "prod"), [NONE((2, 3)) + 1, _places(2, 0), NONE((2, 0))]),
    ("embedding_backward", (6, -1, False), [NONE((0, 3)), _places(0)]),
    ("masked_scale", (2.0,), [NONE((0, 3)), NONE((0, 3), bool)]),
    ("pixel_shuffle", (2, engine.contiguous_format), [NONE((0, 8, 2, 3))]),
    ("pixel_unshuffle", (2, engine.contiguous_format), [NONE((0, 2, 4, 6))]),
    ("linalg_inv", (), [NONE((0, 3, 3))]),
    ("linalg_inv", (), [NONE((2, 0, 0))]),
    ("linalg_det", (), [NONE((0, 3, 3))]),
    ("linalg_slogdet", (), [NONE((0, 3, 3))]),
    ("linalg_solve", (), [NONE((0, 3, 3)), NONE((0, 3, 2))]),
    ("linalg_cholesky", (False,), [NONE((0, 3, 3))]),
    ("linalg_factor", (True,), [NONE((0, 3, 3))]),
    ("linalg_qr", ("reduced",), [NONE((0, 4, 3))]),
    ("linalg_eigh", ("L",), [NONE((0, 3, 3))]),
    ("linalg_svd", (False,), [NONE((0, 4, 3))]),
    ("linalg_pinv", (1e-9, 0.0), [NONE((0, 4, 3))]),
    ("linalg_lu_factor", (), [NONE((0, 3, 3))]),
    ("pool_scatter", ((4, 6), engine.contiguous_format), [NONE((0, 3, 2, 3)), _places(0, 3, 2, 3)]),
    ("pool_gather", ((4, 6),), [NONE((0, 3, 4, 6)), _places(0, 3, 2, 3)]),
    (
        "avg_pool_gradient",
        ((4, 6), (2, 2), (2, 2), (0, 0), False, True, None, engine.contiguous_format),
        [NONE((0, 3, 2, 3))],
    ),
]:
    add(_name, raw(_name, *_attributes), *_arrays)
for _count in range(1, 9):
    _source, _index = NONE((2,) * max(_count, 2)), [_places(0)] * _count
    add("index_get", raw("index_get", tuple(range(_count))), _source, *_index)
    _shape = (0, *_source.shape[_count:])
    add(
        "index_backward",
        raw("index_backward", tuple(range(_count)), _source.shape),
        NONE(_shape),
        *_index,
    )
fixed("window", raw("window", (0, 2)), NONE((1, 3)), reference=lambda x: x[:0, :2])
fixed("window", raw("window", (0, 2)), NONE((0, 3)), reference=lambda x: x[:0, :2])
_IMAGES = NONE((0, 4, 5, 6))
for _name, _function in {
    "avg_pool": lambda x: F.avg_pool2d(x, 2),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "max_pool_with_indices": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True),
    "resample": lambda x: F.interpolate(x, scale_factor=2.0),
    "im2col": lambda x: F.unfold(x, 2),
    "group_norm": lambda x: F.group_norm(x, 2),
    "lay_out": lambda x: x.clone(memory_format=engine.channels_last),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}.items():
    add(_name, _function, _IMAGES)
add("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, (0, 2), return_indices=True), NONE((2, 4, 5, 6)))
add("batch_norm_inference", lambda x, m, v: F.batch_norm(x, m, v), _IMAGES, NONE(4), NONE(4) + 1, constants=(1, 2))
add("col2im", lambda x: F.fold(x, (4, 5), 2), NONE((0, 8, 12)))
add("conv_transposed", lambda x, w: F.conv_transpose2d(x, w), _IMAGES, np.ones((4, 3, 2, 2)))
_MOVES = ConvWindow((1, 1), (0, 0), (1, 1), 1)
add(
    "conv_weight_gradient",
    raw("conv_weight_gradient", _MOVES, (3, 4, 2, 2), (16, 4, 2, 1)),
    NONE((0, 3, 4, 5)),
    _IMAGES,
)
add("nll_loss", lambda x, t: F.nll_loss(x, t, reduction="sum"), NONE((0, 5)), _places(0))
add("expand", raw("expand", (0, 3)), NONE((0, 1)))
add("as_strided", lambda x: engine.as_strided(x, (0, 2), (2, 1)), NONE((0, 3)), relayout=False)
add("copy", lambda x, y: x.clone().copy_(y), NONE((0, 3)), NONE((1, 3)))


def _write_nothing(x: engine.Tensor) -> engine.Tensor:
    base = x * 1
    base[:, 1].mul_(2)
    return base


add("scatter_view", _write_nothing, NONE((0, 3)))

REFUSED = {
    "batch_norm_training": "more than one value a channel is needed, as in PyTorch",
    "median": "of nothing it is NaN, without a call of the operator",
    "linalg_eig": "NumPy's eig of no matrices is covered by linalg_eigh",
    "lstm": "a sequence needs a step",
    "gru": "a sequence needs a step",
    "rnn_tanh": "a sequence needs a step",
    "rnn_relu": "a sequence needs a step",
}
