"""Weight norm, spectral norm, parametrizations, fusion, calls with other parameters. PyTorch's numbers: test_compat."""

import copy
import pickle

import numpy as np
import pytest

import engine
import engine.nn.utils.parametrize as parametrize
from engine import nn
from engine.func import functional_call
from engine.nn.utils import (
    fuse_conv_bn_eval,
    fuse_linear_bn_eval,
    parametrizations,
    remove_spectral_norm,
    remove_weight_norm,
    skip_init,
    spectral_norm,
    weight_norm,
)


class Doubled(nn.Module):
    def forward(self, x: engine.Tensor) -> engine.Tensor:
        return x * 2

    def right_inverse(self, x: engine.Tensor) -> engine.Tensor:
        return x / 2


def close(ours: engine.Tensor, theirs: engine.Tensor) -> None:
    np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [weight_norm, parametrizations.weight_norm], ids=["hook", "parametrization"])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_keeps_the_function_and_splits_the_weight(wrap: object, dim: int | None) -> None:
    layer = nn.Conv1d(3, 4, 2)
    x, weight = engine.randn(2, 3, 5), layer.weight.detach().clone()
    before = layer(x)
    wrapped = wrap(layer, dim=dim)
    assert wrapped is layer
    close(layer(x), before)
    magnitude = next(value for name, value in layer.named_parameters() if name.endswith(("_g", "original0")))
    assert magnitude.shape == {0: (4, 1, 1), 1: (1, 3, 1), None: ()}[dim]
    with engine.no_grad():
        magnitude *= 3
    layer(x).sum().backward()
    close(layer.weight, weight * 3)
    assert magnitude.grad is not None


@pytest.mark.parametrize("wrap", [spectral_norm, parametrizations.spectral_norm], ids=["hook", "parametrization"])
def test_spectral_norm_finds_the_largest_singular_value(wrap: object) -> None:
    engine.manual_seed(0)  # 50 iterations find it in most layers
    layer = wrap(nn.Linear(5, 4).double(), n_power_iterations=50)
    layer(engine.ones(1, 5, dtype=engine.float64))
    np.testing.assert_allclose(engine.linalg.svdvals(layer.weight)[0].item(), 1, rtol=1e-6)
    layer.eval()
    close(layer(engine.ones(1, 5, dtype=engine.float64)), layer(engine.ones(1, 5, dtype=engine.float64)))


def test_removing_leaves_an_ordinary_layer_with_the_same_weight() -> None:
    x = engine.randn(2, 3)
    for wrap, remove in (
        (weight_norm, remove_weight_norm),
        (spectral_norm, remove_spectral_norm),
        (parametrizations.weight_norm, lambda module: parametrize.remove_parametrizations(module, "weight")),
    ):
        layer = wrap(nn.Linear(3, 3)).eval()
        before = layer(x)
        remove(layer)
        close(layer(x), before)
        assert type(layer) is nn.Linear
        assert set(layer.state_dict()) == {"weight", "bias"}
        assert isinstance(layer.weight, nn.Parameter)


def test_a_parametrization_is_computed_assigned_and_chained() -> None:
    layer = nn.Linear(2, 2, bias=False)
    weight = layer.weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", Doubled())
    assert parametrize.is_parametrized(layer)
    assert not parametrize.is_parametrized(layer, "bias")
    close(layer.weight, weight)
    parametrize.register_parametrization(layer, "weight", Doubled())
    close(layer.weight, weight * 2)
    layer.weight = weight
    close(layer.weight, weight)
    close(layer.parametrizations.weight.original, weight / 4)
    assert list(layer.state_dict()) == ["parametrizations.weight.original"]
    copied = copy.deepcopy(layer)
    copied.weight = weight * 5
    close(layer.weight, weight)
    close(copied.weight, weight * 5)
    with pytest.raises(RuntimeError, match=r"only supported through state_dict\(\)"):
        pickle.dumps(layer)
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    close(layer.weight, weight / 4)


def test_cached_computes_once() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            Counting.calls += 1
            return x

    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Counting())
    Counting.calls = 0
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert Counting.calls == 1
    assert layer.weight is not None
    assert Counting.calls == 2


def test_wrong_names_and_results() -> None:
    layer = nn.Linear(2, 3)
    with pytest.raises(ValueError, match=r"does not have a parameter, a buffer, .* with name 'w'"):
        parametrize.register_parametrization(layer, "w", Doubled())
    with pytest.raises(ValueError, match=r"expected a result like 'weight', \(3, 2\) .* got \(\(6,\)"):
        parametrize.register_parametrization(layer, "weight", nn.Flatten(0))
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        parametrize.remove_parametrizations(layer, "weight")
    with pytest.raises(ValueError, match="weight_norm of 'weight' not found"):
        remove_weight_norm(layer)
    with pytest.raises(ValueError, match="spectral_norm of 'weight' not found"):
        remove_spectral_norm(layer)
    with pytest.raises(RuntimeError, match="Cannot register two weight_norm hooks on the same parameter weight"):
        weight_norm(weight_norm(layer))
    with pytest.raises(ValueError, match="Expected n_power_iterations to be positive"):
        spectral_norm(nn.Linear(2, 2), n_power_iterations=0)


@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transposed"])
def test_batch_norm_is_folded_into_a_convolution(transposed: bool) -> None:
    conv = nn.ConvTranspose2d(2, 3, 2) if transposed else nn.Conv2d(2, 3, 2, bias=False)
    norm = nn.BatchNorm2d(3)
    model = nn.Sequential(conv, norm)
    model(engine.randn(8, 2, 4, 4) + 1)
    model.eval()
    x = engine.randn(1, 2, 4, 4)
    close(fuse_conv_bn_eval(conv, norm, transposed)(x), model(x))
    with pytest.raises(AssertionError, match="Fusion only for eval"):
        fuse_conv_bn_eval(conv.train(), norm)


def test_batch_norm_is_folded_into_a_linear_layer() -> None:
    linear, norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
    model = nn.Sequential(linear, norm)
    model(engine.randn(8, 3))
    model.eval()
    x = engine.randn(4, 3)
    close(fuse_linear_bn_eval(linear, norm)(x), model(x))


def test_functional_call_uses_what_it_is_given_and_puts_all_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    own = dict(model.named_parameters())
    given = {"0.weight": engine.zeros(2, 2, requires_grad=True), "1.running_mean": engine.ones(2)}
    out = functional_call(model.eval(), given, engine.ones(1, 2))
    close(out[0], (own["0.bias"] - 1) / (1 + 1e-5) ** 0.5)
    out.sum().backward()
    assert given["0.weight"].grad is not None
    assert own["0.weight"].grad is None
    assert dict(model.named_parameters()) == own
    assert model[1].running_mean.tolist() == [0.0, 0.0]
    with pytest.raises(RuntimeError, match=r"unexpected name\(s\) \['0.w'\]"):
        functional_call(model, {"0.w": engine.ones(1)}, engine.ones(1, 2))
    with pytest.raises(RuntimeError, match=r"missing name\(s\)"):
        functional_call(model, given, engine.ones(1, 2), strict=True)


def test_tied_weights_are_replaced_together() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    doubled = functional_call(model, {"0.weight": 2 * engine.eye(2)}, engine.ones(1, 2))
    assert doubled.tolist() == [[4.0, 4.0]]


def test_skip_init_makes_memory_only() -> None:
    layer = skip_init(nn.Linear, 3, 2)
    assert layer.weight.shape == (2, 3)
    assert layer.weight.device.type == "cpu"
