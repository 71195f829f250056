"""Piecewise and smooth activations against float64 formulas, over their whole range and at their corners."""

import math

import numpy as np
import pytest

from engine.ops.activation.kernels import piecewise
from tests.engine.kernels.samples import DTYPES, close, normal, shifted


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x, beta=1.0, threshold=20.0):
    return x if x * beta > threshold else (max(x * beta, 0) + math.log1p(math.exp(-abs(x * beta)))) / beta


def mish_slope(x):
    t = math.tanh(softplus(x, 1.0, 1e9))
    return t + x * (1 - t * t) * sigmoid(x)


def clipped(x):
    return min(max(x + 3, 0), 6) / 6


# parameters, value, slope: functions of a number
CASES = {
    "relu": ((), lambda x: max(x, 0), lambda x: float(x > 0)),
    "leaky_relu": ((0.25,), lambda x: x if x > 0 else 0.25 * x, lambda x: 1.0 if x > 0 else 0.25),
    "elu": (
        (1.5, 0.75, 0.5),
        lambda x: 0.75 * x if x > 0 else 1.5 * 0.75 * math.expm1(0.5 * x),
        lambda x: 1.5 * 0.75 * 0.5 * math.exp(0.5 * x) if x <= 0 else 0.75,
    ),
    "hardtanh": ((-1.0, 2.0), lambda x: -1.0 if x < -1 else 2.0 if x > 2 else x, lambda x: float(-1 < x < 2)),
    "hardsigmoid": ((), clipped, lambda x: 1 / 6 if -3 < x < 3 else 0.0),
    "hardswish": ((), lambda x: x * clipped(x), lambda x: 0.0 if x <= -3 else x / 3 + 0.5 if x < 3 else 1.0),
    "softplus": (
        (2.0, 10.0),
        lambda x: softplus(x, 2.0, 10.0),
        lambda x: 1.0 if 2 * x > 10 else sigmoid(2 * x),
    ),
    "mish": ((), lambda x: x * math.tanh(softplus(x, 1.0, 1e9)), mish_slope),
}


def samples(dtype):
    dense = np.linspace(-9, 9, 4001)
    return np.concatenate([dense, [0.0, -0.0, -3, 3, -1, 2, 5, 1e-30, -1e-30, 30, -30, 80, -80]]).astype(dtype)


def test_every_kernel_has_a_case():
    assert CASES.keys() | {"sigmoid"} == piecewise.FORWARD.keys() | piecewise.BACKWARD.keys()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in CASES if name in piecewise.FORWARD])
def test_forward(name, dtype):
    parameters, value, _ = CASES[name]
    x = samples(dtype)
    out = np.empty_like(x)
    piecewise.forward(name, x, parameters, out)
    close(out, [value(float(each)) for each in x], dtype)
    copy = x.copy()
    piecewise.forward(name, copy, parameters, copy)
    np.testing.assert_array_equal(copy, out)
    piecewise.forward(name, shifted(x[5:60], 3), parameters, out[5:60])
    np.testing.assert_array_equal(out, copy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_backward(name, dtype):
    parameters, _, slope = CASES[name]
    x = samples(dtype)
    g = normal(x.size, dtype)
    out = np.empty_like(x)
    piecewise.backward(name, g, x, parameters, out)
    close(out, g.astype("float64") * [slope(float(each)) for each in x], dtype)
    piecewise.backward(name, g, x, parameters, g)
    np.testing.assert_array_equal(g, out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sigmoid(dtype):
    """Its backward reads what the forward gave."""
    x = samples(dtype)
    out, slope = np.empty_like(x), np.empty_like(x)
    piecewise.forward("sigmoid", x, (), out)
    np.testing.assert_allclose(out, [sigmoid(float(each)) for each in x], rtol=1e-6 if dtype == "float32" else 1e-14)
    g = normal(x.size, dtype)
    piecewise.backward("sigmoid", g, out, (), slope)
    close(slope, g * out * (1 - out), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_nan(dtype):
    x = np.array([np.inf, -np.inf, np.nan], dtype)
    expected = {
        "relu": [np.inf, 0, np.nan],
        "sigmoid": [1, 0, np.nan],
        "leaky_relu": [np.inf, -np.inf, np.nan],
        "elu": [np.inf, -1.125, np.nan],
        "hardsigmoid": [1, 0, np.nan],
        "softplus": [np.inf, 0, np.nan],
    }
    for name, values in expected.items():
        out = np.empty_like(x)
        piecewise.forward(name, x, CASES[name][0] if name in CASES else (), out)
        np.testing.assert_array_equal(out, np.array(values, dtype), err_msg=name)
    # what is kept is kept whatever it is, what is not is 0 even of infinity
    g = np.array([np.inf, np.nan, np.inf], dtype)
    out = np.empty_like(x)
    piecewise.backward("relu", g, np.array([-1, 1, np.nan], dtype), (), out)
    np.testing.assert_array_equal(out, np.array([0, np.nan, np.inf], dtype))


def test_other_layouts_are_copied_and_other_dtypes_left_to_the_plain_operators():
    x = normal((4, 6), np.float32)
    for array in (x.T, x[:, ::2], x[:, 3:], x[:1].repeat(4, 0), np.broadcast_to(x[:, :1], x.shape), x[::-1, ::-1]):
        out = piecewise.activated("relu", array)
        np.testing.assert_array_equal(out, np.maximum(array, 0))
        assert out.strides == np.empty_like(array).strides
        for gradient in (
            np.asfortranarray(array),
            np.ascontiguousarray(array),
            np.broadcast_to(np.float32(2), array.shape),
        ):
            slope = piecewise.slope("relu", gradient, array)
            np.testing.assert_array_equal(slope, np.where(array > 0, gradient, 0))
            assert slope.strides == out.strides
    assert piecewise.activated("relu", x.astype(np.float16)) is None
    assert piecewise.activated("relu", x.astype(np.int64)) is None
    assert piecewise.slope("relu", x.astype(np.float64), x) is None
