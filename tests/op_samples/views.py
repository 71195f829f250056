"""Samples of views, copies and rearrangements."""

import numpy as np

import engine
from tests.op_samples.table import Array, X, add, draw, fixed, raw

for _name, _attributes, _array, _reference in [
    ("permute", ((2, 0, 1),), X, lambda x: x.transpose(2, 0, 1)),
    ("permute", ((),), draw(), lambda x: x),
    ("expand", ((5, 2, 3),), draw(2, 1), lambda x: np.broadcast_to(x, (5, 2, 3))),
    ("expand", ((0, 2),), draw(1, 2), lambda x: np.zeros((0, 2))),
    ("select", (1, 2), X, lambda x: x[:, 2]),
    ("slice", (2, 1, 4, 2), X, lambda x: x[:, :, 1:4:2]),
    ("slice", (0, 0, 0, 1), X, lambda x: x[:0]),
    ("squeeze", ((1,),), draw(2, 1, 3), lambda x: x[:, 0]),
    ("unsqueeze", (1,), X, lambda x: x[:, None]),
    ("diagonal", (1, 0, 2), X, lambda x: x.diagonal(1, 0, 2)),
    ("diagonal", (-9, 0, 1), X, lambda x: np.zeros((4, 0))),
    ("unfold", (2, 3, 1), X, lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 2)),
    ("unfold", (2, 2, 2), X, lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, 2)[:, :, ::2]),
    ("flip", ((0, 2),), X, lambda x: np.flip(x, (0, 2))),
    ("tril", (-1,), draw(2, 3, 3), lambda x: np.tril(x, -1)),
    ("triu", (1,), draw(3, 4), lambda x: np.triu(x, 1)),
    (
        "constant_pad_nd",
        ((1, 2, -1, 0), 0.5),
        X,
        lambda x: np.pad(x[:, 1:], ((0, 0), (0, 0), (1, 2)), constant_values=0.5),
    ),
    ("constant_pad_nd", ((1, 1, 1, 1), 0.0), draw(2, 3, 2, 2), lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))),
    ("pixel_shuffle", (2, engine.contiguous_format), draw(1, 8, 2, 3), None),
    ("pixel_unshuffle", (2, engine.contiguous_format), draw(1, 2, 4, 6), None),
]:
    add(_name, raw(_name, *_attributes), _array, reference=_reference)
for _name in ("split", "split_with_sizes"):
    add(_name, raw(_name, (1, 0, 2), 1), X, reference=lambda x: (x[:, :1], x[:, 1:1], x[:, 1:]))
add("unbind", raw("unbind", 1), X, reference=lambda x: tuple(x[:, i] for i in range(x.shape[1])))
add("view", raw("view", (6, 4)), X, reference=lambda x: x.reshape(6, 4), relayout=False)
add("view", raw("view", (2, 1, 12)), X, reference=lambda x: x.reshape(2, 1, 12), relayout=False)
add("view", raw("view", (0, 7)), np.zeros((0, 3)), reference=lambda x: x.reshape(0, 7), relayout=False)
fixed("window", raw("window", (1, 2, 3)), X, reference=lambda x: x[:1, :2, :3])
_WINDOWS = np.lib.stride_tricks.as_strided
for _size, _stride, _offset in [((2, 3), (4, 1), 1), ((3, 3), (1, 2), 0), ((2, 2), (0, 5), 3), ((0, 2), (1, 1), 0)]:
    add(
        "as_strided",
        lambda x, s=_size, t=_stride, o=_offset: engine.as_strided(x, s, t, o),
        draw(3, 4),
        reference=lambda x, s=_size, t=_stride, o=_offset: _WINDOWS(x.reshape(-1)[o:], s, tuple(8 * n for n in t)),
        relayout=False,
    )
    add("as_strided_backward", raw("as_strided_backward", (3, 4), (4, 1), _size, _stride, _offset), draw(*_size))
    add("as_strided_gather", raw("as_strided_gather", (3, 4), (4, 1), _size, _stride, _offset), draw(3, 4))
add("view_backward", raw("view_backward", "select", (1, 2), (2, 3, 4), False), draw(2, 4))
add("view_backward", raw("view_backward", "unfold", (2, 3, 1), (2, 3, 4), True), draw(2, 3, 2, 3))
add("lay_out", lambda x: x.clone(memory_format=engine.channels_last), draw(2, 3, 2, 2), reference=lambda x: x)
add("lay_out", lambda x: x.clone() + x.to(engine.float64, copy=True), X, reference=lambda x: 2 * x)
add("copy", lambda x, y: x.clone().copy_(y), X, draw(3, 1), reference=lambda x, y: np.broadcast_to(y, x.shape))


def _write_through_view(x: engine.Tensor, y: engine.Tensor) -> engine.Tensor:
    base = x * 1
    base[:, 1].mul_(y)
    return base


def _write_row(x: Array, y: Array) -> Array:
    made = x.copy()
    made[:, 1] *= y
    return made


add("scatter_view", _write_through_view, X, draw(2, 4), reference=_write_row)
for _count in (1, 2, 3, 10):  # of many tensors calls are recorded in another way than of few
    for _shape in [(2, 3), (2, 3, 2, 2)]:
        add(
            "cat",
            lambda *x: engine.cat(x, 1),
            *(draw(_shape[0], n + 1, *_shape[2:]) for n in range(_count)),
            reference=lambda *x: np.concatenate(x, 1),
        )
    add(
        "cat",
        lambda *x: engine.cat(x, 0),
        *(draw(n, 2) for n in range(_count)),
        reference=lambda *x: np.concatenate(x, 0),
    )
    for _shape in [(2, 3), (2, 3, 2, 2), (0, 2)]:
        add(
            "stack",
            lambda *x: engine.stack(x, 1),
            *(draw(*_shape) for n in range(_count)),
            reference=lambda *x: np.stack(x, 1),
        )
