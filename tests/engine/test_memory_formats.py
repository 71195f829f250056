"""Memory formats through the network: what keeps channels-last, what gradients and optimizers see of it."""

from collections.abc import Callable
from typing import Any

import pytest

import engine
import engine.nn.functional as F
from engine import nn
from engine.optim import laying_out as flat
from engine.rules import layout

Function = Callable[[engine.Tensor], Any]

PLANE: dict[str, Function] = {
    "conv": nn.Conv2d(4, 6, 3, padding=1),
    "conv 1x1": nn.Conv2d(4, 6, 1),
    "conv strided": nn.Conv2d(4, 6, 3, stride=2, bias=False),
    "conv dilated": nn.Conv2d(4, 6, 3, dilation=2),
    "conv grouped": nn.Conv2d(4, 6, 3, groups=2),
    "conv depthwise": nn.Conv2d(4, 8, 3, groups=4, padding=1),
    "conv transposed": nn.ConvTranspose2d(4, 6, 3, stride=2),
    "conv transposed grouped": nn.ConvTranspose2d(4, 6, 3, groups=2),
    "max pool": nn.MaxPool2d(2),
    "average pool": nn.AvgPool2d(3, stride=1, padding=1),
    "adaptive max pool": nn.AdaptiveMaxPool2d(3),
    "adaptive average pool": nn.AdaptiveAvgPool2d(3),
    "batch norm": nn.BatchNorm2d(4),
    "batch norm in evaluation": nn.BatchNorm2d(4).eval(),
    "group norm": nn.GroupNorm(2, 4),
    "nearest": nn.Upsample(scale_factor=2),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(7, 9), mode="bicubic"),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "pad reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pixel shuffle": nn.PixelShuffle(2),
    "pixel unshuffle": nn.PixelUnshuffle(2),
    "channel shuffle": nn.ChannelShuffle(2),
    "cat": lambda x: engine.cat([x, x * 2], 1),
    "cat of batches": lambda x: engine.cat([x, x], 0),
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "prelu": nn.PReLU(4),
    "dropout": nn.Dropout(0.3),
    "bias": lambda x: x + engine.ones(4, 1, 1),
    "squeeze and excite": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "clone": lambda x: x.clone(),
    "conversion": lambda x: x.to(engine.float64),
    "where": lambda x: engine.where(x > 0, x, 0.0),
}
VOLUME: dict[str, Function] = {
    "conv": nn.Conv3d(4, 6, 3, padding=1),
    "conv grouped": nn.Conv3d(4, 6, 2, groups=2, dilation=2),
    "conv transposed": nn.ConvTranspose3d(4, 6, 2, stride=2),
    "max pool": nn.MaxPool3d(2),
    "batch norm": nn.BatchNorm3d(4),
    "nearest": nn.Upsample(scale_factor=2),
    "trilinear": nn.Upsample(scale_factor=2, mode="trilinear"),
    "pad": lambda x: F.pad(x, (1,) * 6),
    "cat": lambda x: engine.cat([x, x], 1),
    "relu": F.relu,
    "bias": lambda x: x + engine.ones(4, 1, 1, 1),
}


def check(function: Function, shape: tuple[int, ...], memory_format: engine.memory_format) -> None:
    """The result and the gradient of the input lie in the input's format, and the values do not depend on it."""
    values = engine.randn(*shape)
    x = values.to(memory_format=memory_format).requires_grad_()
    plain = values.clone().requires_grad_()
    engine.manual_seed(1)
    out = function(x)
    engine.manual_seed(1)
    row_major = function(plain)
    assert out.stride() == layout.strides_for_format(tuple(out.shape), memory_format)
    assert row_major.is_contiguous()
    if not isinstance(function, nn.Dropout):  # masks are drawn in memory order
        assert engine.allclose(out, row_major, rtol=1e-4, atol=1e-5)
    out.square().sum().backward()
    row_major.square().sum().backward()
    assert x.grad.stride() == x.stride()
    assert plain.grad.stride() == plain.stride()


@pytest.mark.parametrize("name", PLANE)
def test_channels_last_stays(name: str) -> None:
    check(PLANE[name], (2, 4, 6, 8), engine.channels_last)


@pytest.mark.parametrize("name", VOLUME)
def test_channels_last_3d_stays(name: str) -> None:
    check(VOLUME[name], (2, 4, 4, 6, 4), engine.channels_last_3d)


def test_a_contiguous_image_meets_a_channels_last_weight() -> None:
    weight = engine.randn(6, 4, 3, 3).to(memory_format=engine.channels_last).requires_grad_()
    out = F.conv2d(engine.randn(2, 4, 5, 5), weight)
    assert out.is_contiguous(memory_format=engine.channels_last)
    out.sum().backward()
    assert weight.grad.stride() == weight.stride()


def test_some_leave_it_behind_as_in_pytorch() -> None:
    x = engine.randn(2, 4, 6, 8).to(memory_format=engine.channels_last)
    assert F.instance_norm(x).is_contiguous()
    assert x.masked_fill(x > 0, 0.0).is_contiguous()
    assert x.flatten(1).is_contiguous()
    assert engine.cat([x, x.contiguous()], 1).is_contiguous()
    volume = engine.randn(2, 4, 4, 6, 4).to(memory_format=engine.channels_last_3d)
    assert F.avg_pool3d(volume, 2).is_contiguous()


def test_stack_keeps_the_order_of_the_axes_it_has() -> None:
    x = engine.randn(2, 4, 6, 8).to(memory_format=engine.channels_last)
    assert engine.stack([x, x], 0).stride() == (384, 192, 1, 32, 4)
    assert engine.stack([x, x], 1).stride() == (384, 4, 1, 64, 8)


class Net(nn.Module):
    """Parameters of every rank, shared ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.Conv2d(8, 16, 1),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(16, 4, 2, stride=2),
        )
        self.again = self.features[0]
        self.line = nn.Conv1d(4, 2, 3)
        self.head = nn.Linear(12, 5)

    def forward(self, images: engine.Tensor) -> engine.Tensor:
        return self.head(self.line(self.features(images).mean(2)).flatten(1))


def test_a_module_moves_its_images_of_weights_only() -> None:
    model = Net()
    before = {name: (parameter, parameter.clone()) for name, parameter in model.named_parameters()}
    assert model.to(memory_format=engine.channels_last) is model
    for name, parameter in model.named_parameters():
        same, values = before[name]
        assert parameter is same
        assert engine.equal(parameter, values)
        if parameter.ndim == 4:
            assert parameter.stride() == layout.channels_last_strides(tuple(parameter.shape)), name
        else:
            assert parameter.is_contiguous(), name
    assert model.again.weight is model.features[0].weight
    model.to(memory_format=engine.contiguous_format)
    assert all(parameter.is_contiguous() for parameter in model.parameters())


@pytest.mark.parametrize("memory_format", [engine.contiguous_format, engine.channels_last])
@pytest.mark.parametrize("optimizer", [engine.optim.SGD, engine.optim.AdamW])
def test_gradients_and_optimizer_follow_without_a_copy(optimizer: Any, memory_format: engine.memory_format) -> None:
    model = Net().to(memory_format=memory_format)
    optimize = optimizer(model.parameters(), lr=0.01)
    images = engine.randn(2, 3, 8, 8).to(memory_format=memory_format)
    before = flat.layout_copies
    for _ in range(2):
        optimize.zero_grad()
        model(images).square().mean().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.stride() == parameter.stride(), name
        optimize.step()
    assert flat.layout_copies == before
    for parameter, state in optimize.state.items():
        for name, value in state.items():
            if name != "step" and value is not None:
                assert value.stride() == parameter.stride()
