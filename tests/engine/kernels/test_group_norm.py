"""Group norm of images against NumPy in float64."""

import numpy as np
import pytest

from engine.ops.norm.kernels import group_norm
from tests.engine.kernels.samples import DTYPES, close, normal


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("shape", "groups"), [((3, 6, 11), 2), ((2, 4, 1), 1), ((2, 4, 50), 4), ((0, 4, 5), 2), ((2, 6, 700), 3)]
)
@pytest.mark.parametrize("as_channels_last", [False, True])
def test_forward_and_backward(as_channels_last, shape, groups, affine, dtype):
    def laid_out(array):
        return np.ascontiguousarray(array.swapaxes(1, 2)) if as_channels_last else array

    batch, channels, _ = shape
    x, g = normal(shape, dtype), normal(shape, dtype, seed=1)
    weight = normal(channels, dtype, seed=2) if affine else None
    bias = normal(channels, dtype, seed=3) if affine else None
    out, mean, rstd = group_norm.forward(laid_out(x), weight, bias, groups, 1e-5, as_channels_last)

    split = x.astype("float64").reshape(batch, groups, channels // groups * shape[2])
    expected_mean = split.mean(axis=2)
    expected_rstd = 1 / np.sqrt(split.var(axis=2) + 1e-5)
    normalised = (split - expected_mean[..., None]) * expected_rstd[..., None]
    scale = np.ones(channels) if weight is None else weight.astype("float64")
    shift = np.zeros(channels) if bias is None else bias.astype("float64")
    close(mean, expected_mean, dtype)
    close(rstd, expected_rstd, dtype)
    close(out, laid_out(normalised.reshape(shape) * scale[:, None] + shift[:, None]), dtype, 4)

    to_x, to_weight, to_bias = group_norm.backward(laid_out(g), laid_out(x), mean, rstd, weight, as_channels_last)
    close(to_weight, (g.astype("float64") * normalised.reshape(shape)).sum(axis=(0, 2)), dtype, 10)
    close(to_bias, g.astype("float64").sum(axis=(0, 2)), dtype, 10)
    scaled = (g.astype("float64") * scale[:, None]).reshape(split.shape)
    share = (scaled * normalised).mean(axis=2, keepdims=True)
    expected = (scaled - scaled.mean(axis=2, keepdims=True) - normalised * share) * expected_rstd[..., None]
    close(to_x, laid_out(expected.reshape(shape)), dtype, 10, magnitude=float(np.max(expected_rstd, initial=0)))
