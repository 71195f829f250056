"""Initialisers: distributions by their moments and bounds, shapes, errors, and the defaults of layers."""

import math
from typing import Any

import numpy as np
import pytest

import engine
from engine import nn
from engine.nn import init

SHAPE = (300, 200)


def drawn(function: Any, *arguments: Any, shape: tuple[int, ...] = SHAPE, **options: Any) -> np.ndarray:
    """What the initialiser writes; it must return its argument and record nothing."""
    generator = engine.Generator().manual_seed(5)
    tensor = nn.Parameter(engine.full(shape, 99.0))
    assert function(tensor, *arguments, generator=generator, **options) is tensor
    assert tensor.grad_fn is None
    return tensor.detach().numpy().copy()


def test_uniform_and_normal() -> None:
    values = drawn(init.uniform_, -1.0, 3.0)
    assert values.min() >= -1.0
    assert values.max() < 3.0
    assert values.mean() == pytest.approx(1.0, abs=0.02)
    values = drawn(init.normal_, 2.0, 0.5)
    assert values.mean() == pytest.approx(2.0, abs=0.01)
    assert values.std() == pytest.approx(0.5, abs=0.01)
    np.testing.assert_array_equal(drawn(init.normal_), drawn(init.normal_))


def test_truncated_normal() -> None:
    values = drawn(init.trunc_normal_, 0.0, 1.0, -0.5, 1.0)
    assert values.min() >= -0.5
    assert values.max() <= 1.0
    density = lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    mass = (math.erf(1 / math.sqrt(2)) + math.erf(0.5 / math.sqrt(2))) / 2
    assert values.mean() == pytest.approx((density(-0.5) - density(1.0)) / mass, abs=0.01)
    with pytest.warns(UserWarning, match="more than 2 std"):
        init.trunc_normal_(engine.ones(3), 10.0)


@pytest.mark.parametrize(
    ("function", "options", "std"),
    [
        (init.xavier_uniform_, {}, math.sqrt(2 / 500)),
        (init.xavier_normal_, {"gain": 2.0}, 2 * math.sqrt(2 / 500)),
        (init.kaiming_uniform_, {"nonlinearity": "relu"}, math.sqrt(2 / 200)),
        (init.kaiming_normal_, {"mode": "fan_out", "a": 1.0}, math.sqrt(1 / 300)),
        (init.kaiming_normal_, {"nonlinearity": "tanh"}, 5 / 3 / math.sqrt(200)),
    ],
    ids=["xavier uniform", "xavier normal", "kaiming uniform", "kaiming normal fan out", "kaiming normal tanh"],
)
def test_variance_scaling(function: Any, options: dict[str, Any], std: float) -> None:
    values = drawn(function, **options)
    assert values.std() == pytest.approx(std, rel=0.02)
    assert abs(values.mean()) < 0.02 * std + 1e-3
    if function in (init.xavier_uniform_, init.kaiming_uniform_):
        assert np.abs(values).max() <= math.sqrt(3) * std * (1 + 1e-6)


def test_fan_counts_the_window() -> None:
    values = drawn(init.kaiming_uniform_, nonlinearity="linear", shape=(8, 3, 5, 7))
    assert np.abs(values).max() <= math.sqrt(3 / (3 * 5 * 7))
    assert np.abs(values).max() > 0.95 * math.sqrt(3 / (3 * 5 * 7))


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (4, 2, 3)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    matrix = drawn(init.orthogonal_, 2.0, shape=shape).reshape(shape[0], -1).astype(float)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)


def test_constants_and_patterns() -> None:
    assert float(init.constant_(engine.empty(3), 4.0).sum()) == 12.0
    assert float(init.ones_(engine.empty(3)).sum()) == 3.0
    assert float(init.zeros_(engine.empty(3)).sum()) == 0.0
    np.testing.assert_array_equal(init.eye_(engine.empty(2, 3)).numpy(), np.eye(2, 3))
    kernel = init.dirac_(engine.empty(4, 2, 3, 3), groups=2)
    image = engine.randn(1, 4, 5, 5)
    np.testing.assert_array_equal(nn.functional.conv2d(image, kernel, padding=1, groups=2).numpy(), image.numpy())


def test_sparse() -> None:
    values = drawn(init.sparse_, 0.1, shape=(50, 20))
    assert ((values == 0).sum(0) == 5).all()
    assert values[values != 0].std() == pytest.approx(0.01, rel=0.1)


def test_gain() -> None:
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", 1.0) == 1.0
    assert init.calculate_gain("tanh") == 5 / 3
    with pytest.raises(ValueError, match="Unsupported nonlinearity swoosh; known are"):
        init.calculate_gain("swoosh")
    with pytest.raises(ValueError, match="not a valid number"):
        init.calculate_gain("leaky_relu", True)


def test_errors() -> None:
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        init.xavier_uniform_(engine.empty(3))
    with pytest.raises(ValueError, match="Mode fan_sideways not supported"):
        init.kaiming_uniform_(engine.empty(3, 3), mode="fan_sideways")
    with pytest.raises(ValueError, match="2 dimensions"):
        init.eye_(engine.empty(3))
    with pytest.raises(ValueError, match="3, 4, or 5 dimensions"):
        init.dirac_(engine.empty(3, 3))
    with pytest.raises(ValueError, match="divisible by groups"):
        init.dirac_(engine.empty(3, 3, 3), groups=2)
    with pytest.warns(UserWarning, match="no-op"):
        init.kaiming_uniform_(engine.empty(0, 3))


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (lambda: nn.Linear(400, 300), 1 / math.sqrt(400)),
        (lambda: nn.Conv2d(40, 50, 3), 1 / math.sqrt(40 * 9)),
        (lambda: nn.Conv1d(40, 50, 3, groups=2), 1 / math.sqrt(20 * 3)),
        (lambda: nn.ConvTranspose2d(40, 50, 3), 1 / math.sqrt(50 * 9)),
        (lambda: nn.LSTM(30, 100), 1 / math.sqrt(100)),
        (lambda: nn.GRUCell(30, 100), 1 / math.sqrt(100)),
        (lambda: nn.Bilinear(100, 20, 30), 1 / math.sqrt(100)),
    ],
    ids=["Linear", "Conv2d", "Conv1d", "ConvTranspose2d", "LSTM", "GRUCell", "Bilinear"],
)
def test_layers_start_uniform_within_their_bound(layer: Any, bound: float) -> None:
    for parameter in layer().parameters():
        values = np.abs(parameter.detach().numpy())
        assert values.max() <= bound * (1 + 1e-6)
        assert values.max() > (1 - 10 / values.size) * bound  # by chance otherwise once in 20,000 samples
        deviation = bound / math.sqrt(12 * values.size)
        assert values.mean() == pytest.approx(bound / 2, abs=5 * deviation)


def test_layers_that_start_otherwise() -> None:
    table = nn.Embedding(1000, 50, padding_idx=-1)
    assert table.weight.detach().numpy()[:-1].std() == pytest.approx(1.0, rel=0.02)
    assert float(table.weight[-1].abs().sum()) == 0.0
    attention = nn.MultiheadAttention(64, 4)
    assert np.abs(attention.in_proj_weight.detach().numpy()).max() <= math.sqrt(6 / (64 * 4))
    assert float(attention.in_proj_bias.abs().sum() + attention.out_proj.bias.abs().sum()) == 0.0
    norm = nn.BatchNorm2d(3)
    assert norm.weight.tolist() == norm.running_var.tolist() == [1.0] * 3
    assert norm.bias.tolist() == norm.running_mean.tolist() == [0.0] * 3
