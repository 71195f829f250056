"""Activations against the C library in float64, over their whole range."""

import math

import numpy as np
import pytest

from engine.ops.activation.kernels import smooth as activation
from tests.engine.kernels.samples import DTYPES, close, normal, shifted

SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def sigmoid(x):
    return 1 / (1 + np.exp(-x)) if x >= 0 else np.exp(x) / (1 + np.exp(x))


def gelu_tanh(x):
    return 0.5 * x * (1 + math.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x**3)))


def gelu_tanh_slope(x):
    t = math.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x)


def gelu(x):
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def gelu_slope(x):
    return 0.5 * math.erfc(-x / math.sqrt(2)) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def silu(x):
    return x * sigmoid(x)


def silu_slope(x):
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


FORWARD = {
    "gelu": (activation.gelu_forward, gelu),
    "gelu tanh": (lambda x, out=None: activation.gelu_forward(x, approximate="tanh", out=out), gelu_tanh),
    "silu": (activation.silu_forward, silu),
}
BACKWARD = {
    "gelu": (activation.gelu_backward, gelu_slope),
    "gelu tanh": (lambda g, x, out=None: activation.gelu_backward(g, x, approximate="tanh", out=out), gelu_tanh_slope),
    "silu": (activation.silu_backward, silu_slope),
}


def samples(dtype):
    dense = np.linspace(-9, 9, 4001)
    return np.concatenate([dense, [0.0, -0.0, 1e-30, -1e-30, 30, -30, 88, -88, 300, -300]]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name, dtype):
    function, reference = FORWARD[name]
    x = samples(dtype)
    # Absolute error relative to 9, the largest finite value of interest; the far ends exactly.
    expected = np.array([reference(float(value)) for value in x])
    close(function(x[:-4]), expected[:-4], dtype)
    close(function(x[-4:]), expected[-4:], dtype)
    assert function(np.empty(0, dtype)).size == 0
    copy = x.copy()
    assert function(copy, out=copy) is copy
    np.testing.assert_array_equal(copy, function(x))
    for shift in (1, 3):
        np.testing.assert_array_equal(function(shifted(x[5:60], shift)), copy[5:60])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name, dtype):
    function, reference = BACKWARD[name]
    x = samples(dtype)
    g = normal(x.size, dtype)
    expected = g.astype("float64") * np.array([reference(float(value)) for value in x])
    close(function(g, x), expected, dtype)
    copy = g.copy()
    assert function(copy, x, out=copy) is copy
    np.testing.assert_array_equal(copy, function(g, x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_keeps_its_digits_in_the_left_tail(dtype):
    """By erf, which rounds ``1 + erf`` at 6e-8, nothing is left of float32 at -5."""
    x = np.linspace(-5, 0, 501).astype(dtype)
    expected = [gelu(float(value)) for value in x]
    np.testing.assert_allclose(activation.gelu_forward(x), expected, rtol=2e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan(dtype):
    x = np.array([np.inf, -np.inf, np.nan], dtype)
    np.testing.assert_array_equal(activation.silu_forward(x), np.array([np.inf, np.nan, np.nan], dtype))
    for approximate in ("none", "tanh"):
        np.testing.assert_array_equal(
            activation.gelu_forward(x, approximate=approximate), np.array([np.inf, np.nan, np.nan], dtype)
        )
        assert np.isnan(activation.gelu_backward(np.ones_like(x), x, approximate=approximate)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(8, 16), (3, 0), (7,), (2, 3, 5), ()])
def test_tanh_backward(shape, dtype):
    g, output = normal(shape, dtype), np.tanh(normal(shape, dtype, seed=1))
    slope = activation.tanh_backward(np.asarray(g), np.asarray(output))
    assert slope.shape == shape
    close(slope, np.asarray(g, "float64") * (1 - np.asarray(output, "float64") ** 2), dtype)
