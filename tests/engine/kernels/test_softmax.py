"""Softmax and log-softmax rows against NumPy in float64."""

import numpy as np
import pytest

from engine.ops.softmax import kernels as softmax
from tests.engine.kernels.samples import DTYPES, close, normal, shifted

SHAPES = ((0, 5), (3, 0), (1, 1), (4, 1), (5, 10), (7, 64), (3, 65), (2, 1000))


def log_softmax_reference(x):
    x = x.astype("float64")
    x = x - x.max(axis=1, keepdims=True, initial=-np.inf)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True)) if x.size else x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_forward_and_backward(shape, scale, dtype):
    x, g = normal(shape, dtype, scale=scale), normal(shape, dtype, seed=1)
    log_expected = log_softmax_reference(x)
    expected = np.exp(log_expected)
    output, log_output = softmax.softmax_forward(x), softmax.log_softmax_forward(x)
    close(output, expected, dtype)
    close(log_output, log_expected, dtype)
    g64 = g.astype("float64")
    dx = expected * (g64 - (g64 * expected).sum(axis=1, keepdims=True))
    largest = float(abs(g).max(initial=0))
    close(softmax.softmax_backward(g, output), dx, dtype, magnitude=largest)
    dx = g64 - expected * g64.sum(axis=1, keepdims=True)
    close(softmax.log_softmax_backward(g, log_output), dx, dtype, factor=4, magnitude=largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_equals_out_of_place(dtype):
    x, g = normal((5, 37), dtype), normal((5, 37), dtype, seed=1)
    for forward, backward in (
        (softmax.softmax_forward, softmax.softmax_backward),
        (softmax.log_softmax_forward, softmax.log_softmax_backward),
    ):
        copy = x.copy()
        output = forward(x)
        assert forward(copy, out=copy) is copy
        close(copy, output, dtype)
        gradient = g.copy()
        expected = backward(g, output)
        assert backward(gradient, output, out=gradient) is gradient
        close(gradient, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_depends_on_itself_only(dtype):
    x = normal((9, 203), dtype)
    together = softmax.softmax_forward(x)
    log_together = softmax.log_softmax_forward(x)
    for row in range(9):
        for shift in (0, 1, 5):
            alone = shifted(x[row : row + 1], shift)
            np.testing.assert_array_equal(softmax.softmax_forward(alone), together[row : row + 1])
            np.testing.assert_array_equal(softmax.log_softmax_forward(alone), log_together[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [3, 200])
def test_infinities_and_nan(columns, dtype):
    x = np.zeros((6, columns), dtype)
    x[0, 1] = -np.inf
    x[1] = -np.inf
    x[2, 2] = np.inf
    x[3, 0] = np.nan
    x[4, 1] = -np.nan
    x[5, 1] = np.finfo(dtype).max
    with np.errstate(invalid="ignore"):
        output = softmax.softmax_forward(x)
        log_output = softmax.log_softmax_forward(x)
    assert output[0, 1] == 0
    assert log_output[0, 1] == -np.inf
    close(output[0, 2], np.float64(1 / (columns - 1)), dtype)
    assert np.isnan(output[1:5]).all()
    assert np.isnan(log_output[1:5]).all()
    assert output[5, 1] == 1
    assert output[5, 0] == 0
