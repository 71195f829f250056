"""Layer norm rows against NumPy in float64."""

import numpy as np
import pytest

from engine.ops.norm.kernels import layer_norm as norm
from tests.engine.kernels.samples import DTYPES, close, normal, shifted

SHAPES = ((0, 5), (3, 0), (1, 1), (5, 3), (64, 16), (65, 128), (200, 33))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", ["none", "weight", "both"])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_forward_and_backward(shape, affine, offset, dtype):
    x, g = normal(shape, dtype) + np.dtype(dtype).type(offset), normal(shape, dtype, seed=1)
    weight = None if affine == "none" else normal(shape[1], dtype, seed=2)
    bias = normal(shape[1], dtype, seed=3) if affine == "both" else None
    output, mean, rstd = norm.layer_norm_forward(x, weight, bias, 1e-5)

    x64, g64 = x.astype("float64"), g.astype("float64")
    if shape[1]:
        expected_mean = x64.mean(axis=1)
        expected_rstd = 1 / np.sqrt(x64.var(axis=1) + 1e-5)
    else:
        expected_mean, expected_rstd = np.zeros(shape[0]), np.full(shape[0], 1 / np.sqrt(1e-5))
    normalised = (x64 - expected_mean[:, None]) * expected_rstd[:, None]
    scale = 1.0 if weight is None else weight.astype("float64")
    # What a mean of 100 costs: its last bit is 100 times coarser than the spread's.
    factor = 1 + offset
    close(mean, expected_mean, dtype)
    close(rstd, expected_rstd, dtype, factor)
    close(output, normalised * scale + (0.0 if bias is None else bias), dtype, factor)

    dx, dweight, dbias = norm.layer_norm_backward(g, x, mean, rstd, weight)
    close(dweight, (g64 * normalised).sum(axis=0), dtype, 10 * factor)
    close(dbias, g64.sum(axis=0), dtype, 10)
    scaled = g64 * scale
    if shape[1]:
        projected = (scaled * normalised).mean(axis=1, keepdims=True)
        scaled = scaled - scaled.mean(axis=1, keepdims=True) - normalised * projected
    # With one column x's gradient is zero up to the rounding of terms of size g * rstd.
    magnitude = max(abs(g64).max(initial=0) * abs(expected_rstd).max(initial=0), 1.0)
    close(dx / dx.dtype.type(magnitude), expected_rstd[:, None] * scaled / magnitude, dtype, 10 * factor)


def test_in_place_and_row_alone():
    x, g = normal((7, 100), "float32"), normal((7, 100), "float32", seed=1)
    weight, bias = normal(100, "float32", seed=2), normal(100, "float32", seed=3)
    output, mean, rstd = norm.layer_norm_forward(x, weight, bias, 1e-5)
    copy = x.copy()
    assert norm.layer_norm_forward(copy, weight, bias, 1e-5, out=copy)[0] is copy
    np.testing.assert_array_equal(copy, output)
    dx, _, _ = norm.layer_norm_backward(g, x, mean, rstd, weight)
    copy = g.copy()
    assert norm.layer_norm_backward(copy, x, mean, rstd, weight, out=copy)[0] is copy
    np.testing.assert_array_equal(copy, dx)
    for row in range(7):
        part = slice(row, row + 1)
        alone = shifted(x[part], row + 1)
        np.testing.assert_array_equal(norm.layer_norm_forward(alone, weight, bias, 1e-5)[0], output[part])
        dx_alone, _, _ = norm.layer_norm_backward(shifted(g[part], row), alone, mean[part], rstd[part], weight)
        np.testing.assert_array_equal(dx_alone, dx[part])


def test_weight_gradient_error_does_not_grow_with_the_rows():
    rows = 200_000
    x = np.ones((rows, 2), "float32")
    x[:, 1] = -1
    g = np.full((rows, 2), 0.1, "float32")
    _, mean, rstd = norm.layer_norm_forward(x, None, None, 0.0)
    _, dweight, dbias = norm.layer_norm_backward(g, x, mean, rstd, None)
    np.testing.assert_allclose(dbias, rows * np.float64(np.float32(0.1)), rtol=1e-5)
    np.testing.assert_allclose(dweight, [dbias[0], -dbias[0]], rtol=1e-5)
