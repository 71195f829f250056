"""Gradients of parameters come in the contract's layout: `.grad` is the very array that the rule returned."""

from collections.abc import Callable
from typing import Any

import pytest

import engine
import engine.nn.functional as F
from engine.autograd import accumulate

Layers = dict[str, tuple[Callable[..., engine.Tensor], tuple[tuple[int, ...], ...]]]

LAYERS: Layers = {
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), ((6, 4, 3, 3), (6,))),
    "conv2d 1x1": (F.conv2d, ((6, 4, 1, 1), (6,))),
    "conv2d of one channel": (lambda x, w, b: F.conv2d(x[:, :1], w, b), ((6, 1, 3, 3), (6,))),
    "conv2d grouped": (lambda x, w, b: F.conv2d(x, w, b, groups=2), ((6, 2, 3, 3), (6,))),
    "conv2d depthwise": (lambda x, w, b: F.conv2d(x, w, b, groups=4), ((4, 1, 3, 3), (4,))),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), ((4, 3, 3, 3), (3,))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((4,), (4,))),
    "batch_norm evaluated": (lambda x, w, b: F.batch_norm(x, engine.zeros(4), engine.ones(4), w, b), ((4,), (4,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((4,), (4,))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (9, 10), w, b), ((9, 10), (9, 10))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (10,), w), ((10,),)),
}


@pytest.mark.parametrize("layout", [engine.contiguous_format, engine.channels_last])
@pytest.mark.parametrize("name", LAYERS)
def test_no_gradient_of_a_parameter_is_copied(
    monkeypatch: pytest.MonkeyPatch, name: str, layout: engine.memory_format
) -> None:
    copied: list[Any] = []
    copy = accumulate.copy_by_contract
    monkeypatch.setattr(accumulate, "copy_by_contract", lambda *given: copied.append(given) or copy(*given))
    function, shapes = LAYERS[name]
    parameters = [engine.randn(*shape) for shape in shapes]
    leaves = [
        (tensor.to(memory_format=layout) if tensor.ndim == 4 else tensor).requires_grad_() for tensor in parameters
    ]
    x = engine.randn(2, 4, 9, 10).to(memory_format=layout)
    (function(x, *leaves) * 2).sum().backward()
    assert not copied
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.stride() == leaf.stride()
