"""The row-wise middle of attention against NumPy in float64, with and without the causal triangle."""

import numpy as np
import pytest

from engine.ops.attention.kernels import softmax as attention
from tests.engine.kernels.samples import DTYPES, close, normal

CASES = [(3, 1, 1, 0), (2, 5, 5, 0), (2, 4, 9, 3), (1, 7, 140, 100), (2, 3, 130, 0)]  # slices, length, keys, first


def attended(slices, length, keys, first, causal):
    """(M, S): which keys the query of each row sees."""
    query = first + np.arange(slices * length) % length
    return (np.arange(keys) <= query[:, None]) if causal else np.ones((slices * length, keys), bool)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("slices", "length", "keys", "first"), CASES)
def test_forward_again_and_backward(slices, length, keys, first, causal, dtype):
    seen = attended(slices, length, keys, first, causal)
    scores, scale = normal(seen.shape, dtype, scale=3.0), 0.7
    where = {"length": length, "scale": scale, "causal": causal, "first": first}

    scaled = np.where(seen, scores.astype("float64") * scale, -np.inf)
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    sums = scaled.max(axis=1) + np.log(powers.sum(axis=1))

    probabilities, log_sums = scores.copy(), np.empty(len(scores), dtype)
    attention.softmax_rows(probabilities, log_sums, **where)
    close(probabilities, expected, dtype)
    close(log_sums, sums, dtype)
    again = scores.copy()
    attention.softmax_rows_again(again, log_sums, **where)
    close(again, expected, dtype, 4)

    gradient = normal(seen.shape, dtype, seed=1)
    g = gradient.astype("float64")
    of_scores = expected * (g - (g * expected).sum(axis=1, keepdims=True)) * scale
    attention.softmax_rows_backward(gradient, probabilities, **where)
    close(gradient, of_scores, dtype, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_anything_to_attend_is_zero(dtype):
    scores, log_sums = np.full((2, 3), -np.inf, dtype), np.empty(2, dtype)
    scores[1, 0] = 1
    attention.softmax_rows(scores, log_sums, length=2, scale=1.0, causal=False)
    np.testing.assert_array_equal(scores, np.array([[0, 0, 0], [1, 0, 0]], dtype))
    np.testing.assert_array_equal(log_sums, np.array([-np.inf, 1], dtype))
    again = np.full((2, 3), -np.inf, dtype)
    again[1, 0] = 1
    attention.softmax_rows_again(again, log_sums, length=2, scale=1.0, causal=False)
    np.testing.assert_array_equal(again, scores)
