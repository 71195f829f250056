"""Adding a bias and summing columns: the bits of NumPy's own loops."""

import numpy as np
import pytest

from engine.ops.matmul.kernels import bias as linear
from tests.engine.kernels.samples import DTYPES, normal, shifted

SHAPES = [(0, 3), (1, 1), (5, 7), (64, 33)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_bias(shape, dtype):
    matrix, bias = normal(shape, dtype), normal(shape[1], dtype, seed=1)
    expected = matrix + bias
    moved = shifted(matrix, 1)
    linear.add_bias(matrix, bias)
    np.testing.assert_array_equal(matrix, expected)
    linear.add_bias(moved, bias)
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_column_sums(shape, dtype):
    matrix = normal(shape, dtype)
    expected = np.zeros(shape[1], dtype)
    for row in matrix:
        expected += row
    np.testing.assert_array_equal(linear.column_sums(matrix), expected)
