"""Lazy layers: what they become, and loading into them."""

import copy

import pytest

import engine
from engine import nn

LAYERS = [
    (nn.LazyLinear(3), nn.Linear(4, 3), (2, 4)),
    (nn.LazyLinear(3, bias=False), nn.Linear(4, 3, bias=False), (4,)),
    (nn.LazyConv1d(4, 3, 2, 1, groups=2), nn.Conv1d(2, 4, 3, 2, 1, groups=2), (1, 2, 6)),
    (nn.LazyConv2d(4, 3, padding="same", bias=False), nn.Conv2d(3, 4, 3, padding="same", bias=False), (1, 3, 5, 5)),
    (nn.LazyConv2d(4, 3, 1, 0, 1, 1, False), nn.Conv2d(3, 4, 3, bias=False), (3, 5, 5)),
    (nn.LazyConv3d(2, 2), nn.Conv3d(3, 2, 2), (1, 3, 4, 4, 4)),
    (nn.LazyConvTranspose1d(2, 3), nn.ConvTranspose1d(3, 2, 3), (1, 3, 4)),
    (nn.LazyConvTranspose2d(2, 3, 2, output_padding=1), nn.ConvTranspose2d(3, 2, 3, 2, 0, 1), (1, 3, 4, 4)),
    (nn.LazyConvTranspose3d(2, 2), nn.ConvTranspose3d(3, 2, 2), (1, 3, 2, 2, 2)),
    (nn.LazyBatchNorm1d(), nn.BatchNorm1d(3), (4, 3)),
    (nn.LazyBatchNorm2d(momentum=None), nn.BatchNorm2d(3, momentum=None), (2, 3, 2, 2)),
    (nn.LazyBatchNorm3d(affine=False), nn.BatchNorm3d(3, affine=False), (2, 3, 2, 2, 2)),
    (nn.LazyInstanceNorm1d(), nn.InstanceNorm1d(3), (3, 4)),
    (nn.LazyInstanceNorm2d(affine=True, track_running_stats=True), nn.InstanceNorm2d(3, 1e-5, 0.1, True, True), None),
    (nn.LazyInstanceNorm3d(), nn.InstanceNorm3d(3), (2, 3, 2, 2, 2)),
]


@pytest.mark.parametrize(("lazy", "plain", "shape"), LAYERS, ids=[repr(plain) for _, plain, _ in LAYERS])
def test_becomes_the_ordinary_layer(lazy: nn.Module, plain: nn.Module, shape: tuple[int, ...] | None) -> None:
    x = engine.randn(*(shape or (2, 3, 4, 4)))
    lazy = copy.deepcopy(lazy)
    assert type(lazy) is not type(plain)
    lazy(x)
    assert type(lazy) is type(plain)
    assert repr(lazy) == repr(plain)
    assert {name: value.shape for name, value in lazy.state_dict().items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }
    assert not lazy._forward_pre_hooks
    lazy.load_state_dict(plain.state_dict())
    assert engine.equal(lazy(x), plain(x))


@pytest.mark.parametrize(("lazy", "plain", "shape"), LAYERS, ids=[repr(plain) for _, plain, _ in LAYERS])
def test_loads_before_the_first_call(lazy: nn.Module, plain: nn.Module, shape: tuple[int, ...] | None) -> None:
    x = engine.randn(*(shape or (2, 3, 4, 4)))
    lazy = copy.deepcopy(lazy)
    lazy.load_state_dict(plain.state_dict())
    assert engine.equal(lazy(x), plain(x))
    assert type(lazy) is type(plain)


def test_inside_a_model_and_with_an_optimizer() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    model(engine.randn(2, 1, 4, 4))
    optimizer = engine.optim.SGD(model.parameters(), lr=0.1)
    before = model[3].weight.detach().clone()
    model(engine.randn(2, 1, 4, 4)).sum().backward()
    optimizer.step()
    assert not engine.equal(model[3].weight, before)
    assert model[3].in_features == 16


def test_shapes_are_refused_until_known() -> None:
    layer = nn.LazyLinear(2)
    assert layer.has_uninitialized_params()
    assert isinstance(layer.weight, nn.UninitializedParameter)
    with pytest.raises(RuntimeError, match="Can't access the shape of an uninitialized parameter"):
        _ = layer.weight.shape
    with pytest.raises(ValueError, match="in_channels must be divisible by groups"):
        nn.LazyConv1d(2, 1, groups=2)(engine.ones(1, 3, 4))
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input to LazyConv2d"):
        nn.LazyConv2d(2, 1)(engine.ones(3, 4))
