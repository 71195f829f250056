"""Weighted sums along an axis against a product with the matrix written out."""

import numpy as np
import pytest

from engine.ops.resample import kernels as resample
from tests.engine.kernels.samples import DTYPES, close, normal


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [1, 5, 32])
def test_weighted_sums(inner: int, dtype: str) -> None:
    source = normal((3, 6, inner), dtype)
    indices = np.array([[0, 5, -1, 2], [1, -1, -1, 2], [-1, 3, -1, 4]])
    weights = normal(indices.shape, dtype, seed=1)
    matrix = np.zeros((4, 6))
    for k, i in np.ndindex(*indices.shape):
        if indices[k, i] >= 0:
            matrix[i, indices[k, i]] += weights[k, i]
    expected = np.einsum("os,msi->moi", matrix, source.astype(float))
    close(resample.weighted_sums(source, indices, weights), expected, dtype)


def test_an_absent_term_is_not_a_zero_times_something() -> None:
    source = np.full((1, 2, 1), np.nan, "float32")
    source[0, 1] = 1
    out = resample.weighted_sums(source, np.array([[-1, 1, 0]]), np.ones((1, 3), "float32"))
    np.testing.assert_array_equal(out[0, :, 0], [0, 1, np.nan])
