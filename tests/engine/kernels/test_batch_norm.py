"""Batch norm's four steps against NumPy in float64, in both layouts."""

import numpy as np
import pytest

from engine.ops.norm.kernels import batch_norm
from tests.engine.kernels.samples import DTYPES, close, normal, shifted

SHAPES = ((1, 1, 1), (2, 3, 5), (4, 16, 49), (3, 100, 1), (600, 5, 4), (2, 1, 1000))


def laid_out(x, layout):
    """(N, C, L) as it is, or as channels-last rows (N * L, C)."""
    return x if layout == "planes" else np.ascontiguousarray(x.transpose(0, 2, 1)).reshape(-1, x.shape[1])


def as_planes(y, shape):
    return y if y.ndim == 3 else y.reshape(shape[0], shape[2], shape[1]).transpose(0, 2, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["planes", "rows"])
@pytest.mark.parametrize("affine", [False, True])
def test_forward_and_backward(shape, layout, affine, dtype):
    _, channels, _ = shape
    x, g = normal(shape, dtype, scale=3) + np.dtype(dtype).type(1), normal(shape, dtype, seed=1)
    weight = normal(channels, dtype, seed=2) if affine else None
    bias = normal(channels, dtype, seed=3) if affine else None
    x64, g64, wide = x.astype("float64"), g.astype("float64"), (slice(None), None)
    expected_mean, expected_variance = x64.mean(axis=(0, 2)), x64.var(axis=(0, 2))
    expected_rstd = 1 / np.sqrt(expected_variance + 1e-2)
    scale = expected_rstd * (1.0 if weight is None else weight)
    count = shape[0] * shape[2]

    mine, gradient = laid_out(x, layout), laid_out(g, layout)
    mean, variance = batch_norm.moments(mine)
    close(mean, expected_mean, dtype)
    close(variance, expected_variance, dtype)
    rstd = (1 / np.sqrt(variance + 1e-2)).astype(dtype)
    output = batch_norm.normalise(mine, mean, rstd, weight, bias)
    expected = (x64 - expected_mean[wide]) * scale[wide] + (np.zeros(channels) if bias is None else bias)[wide]
    close(as_planes(output, shape), expected, dtype, 4)

    total, projected = batch_norm.gradient_sums(gradient, mine, mean)
    expected_total = g64.sum(axis=(0, 2))
    expected_projected = (g64 * (x64 - expected_mean[wide])).sum(axis=(0, 2))
    close(total, expected_total, dtype, 4)
    close(projected, expected_projected, dtype, 40)
    dx = batch_norm.input_gradient(gradient, mine, mean, rstd, weight, total, projected, count)
    slope = expected_projected * expected_rstd**2 / count
    centred = x64 - expected_mean[wide]
    expected = (g64 - (expected_total / count)[wide] - centred * slope[wide]) * scale[wide]
    # One element a channel: the exact gradient is zero, what is left is the rounding of terms of size g * scale.
    magnitude = max(abs(g64).max() * abs(scale).max(), 1.0)
    close(as_planes(dx, shape) / dx.dtype.type(magnitude), expected / magnitude, dtype, 20)
    zeros = np.zeros(channels, dtype)
    evaluation = batch_norm.input_gradient(gradient, mine, mean, rstd, weight, zeros, zeros, count)
    close(as_planes(evaluation, shape), g64 * scale[wide], dtype, 4)


@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_moments_of_far_and_long_data(layout):
    """Mean 1000, deviation 1, 400,000 elements: a plain float32 sum would have lost the variance."""
    x = normal((4, 2, 50_000), "float64") + 1000
    x32 = x.astype("float32")
    mean, variance = batch_norm.moments(laid_out(x32, layout))
    np.testing.assert_allclose(mean, x32.astype("float64").mean(axis=(0, 2)), rtol=1e-6)
    np.testing.assert_allclose(variance, x32.astype("float64").var(axis=(0, 2)), rtol=1e-4)


def test_nothing_to_average():
    for empty in (np.zeros((0, 3), "float32"), np.zeros((0, 3, 4), "float32"), np.zeros((2, 3, 0), "float32")):
        mean, variance = batch_norm.moments(empty)
        assert np.isnan(mean).all()
        assert np.isnan(variance).all()
        assert batch_norm.normalise(empty, mean, variance, None, None).shape == empty.shape


@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_in_place_and_alignment(layout):
    x, g = laid_out(normal((3, 7, 11), "float32"), layout), laid_out(normal((3, 7, 11), "float32", seed=1), layout)
    mean, variance = batch_norm.moments(x)
    rstd = 1 / np.sqrt(variance)
    sums = batch_norm.gradient_sums(g, x, mean)
    output = batch_norm.normalise(x, mean, rstd, None, None)
    dx = batch_norm.input_gradient(g, x, mean, rstd, None, *sums, 33)
    for shift in (1, 6):
        moved, moved_g = shifted(x, shift), shifted(g, 7 - shift)
        np.testing.assert_array_equal(batch_norm.moments(moved), (mean, variance))
        np.testing.assert_array_equal(batch_norm.gradient_sums(moved_g, moved, mean), sums)
        np.testing.assert_array_equal(
            batch_norm.input_gradient(moved_g, moved, mean, rstd, None, *sums, 33, out=moved_g), dx
        )
        np.testing.assert_array_equal(batch_norm.normalise(moved, mean, rstd, None, None, out=moved), output)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("running", ["mean", "var", "mean var", ""])
def test_statistics_are_settled_as_by_numpy(dtype: str, running: str) -> None:
    """To the bit: whoever has other running statistics gets them by NumPy."""
    generator = np.random.default_rng(0)
    mean, variance, running_mean, running_var = generator.random((4, 5)).astype(dtype)
    kept, of_mean, of_variance = batch_norm.shares(0.1, 12)
    assert (kept, of_mean, of_variance) == (0.9, 0.1, 0.1 * 12 / 11)
    expected_mean = running_mean * kept + of_mean * mean
    expected_var = running_var * kept + of_variance * variance
    rstd = batch_norm.settle(
        mean,
        variance,
        running_mean if "mean" in running else None,
        running_var if "var" in running else None,
        0.1,
        12,
        1e-5,
    )
    np.testing.assert_array_equal(rstd, 1 / np.sqrt(variance + variance.dtype.type(1e-5)))
    assert np.array_equal(running_mean, expected_mean) is ("mean" in running)
    assert np.array_equal(running_var, expected_var) is ("var" in running)
