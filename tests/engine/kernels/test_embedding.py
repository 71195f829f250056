"""Scatter-added rows against numpy.add.at."""

import numpy as np
import pytest

from engine.ops.embedding import kernels as embedding
from tests.engine.kernels.samples import DTYPES, close, normal, shifted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(0, 4), (5, 0), (1, 1), (100, 7), (300, 64)])
def test_embedding_backward(rows, width, dtype):
    g, indices = normal((rows, width), dtype), np.random.default_rng(1).integers(0, 10, rows)
    expected = np.zeros((10, width))
    np.add.at(expected, indices, g.astype("float64"))
    close(embedding.embedding_backward(g, indices, 10), expected, dtype, 4)
    counts = np.maximum(np.bincount(indices, minlength=10), 1)
    close(embedding.embedding_backward(g, indices, 10, scale_grad_by_freq=True), expected / counts[:, None], dtype, 4)
    expected[3] = 0
    out = np.full((10, width), np.nan, dtype)
    assert embedding.embedding_backward(g, indices, 10, padding_idx=3, out=out) is out
    close(out, expected, dtype, 4)


def test_rows_are_added_in_their_order():
    g = np.array([[1e8], [1.0], [-1e8], [1.0]], "float32")
    assert embedding.embedding_backward(g, np.zeros(4, np.int64), 1)[0, 0] == ((np.float32(1e8) + 1) - 1e8) + 1
    many = normal((500, 19), "float32")
    indices = np.random.default_rng(0).integers(0, 3, 500)
    expected = embedding.embedding_backward(many, indices, 3)
    np.testing.assert_array_equal(embedding.embedding_backward(shifted(many, 5), indices, 3), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_add(dtype):
    out, source = normal((5, 6), dtype), normal((9, 6), dtype, seed=1)
    index = np.random.default_rng(0).integers(0, 5, 9)
    expected = out.astype("float64")
    np.add.at(expected, index, -2.5 * source.astype("float64"))
    embedding.index_add(out, index, source, alpha=-2.5)
    close(out, expected, dtype)


@pytest.mark.parametrize("bad", [-1, 5])
def test_index_out_of_range_changes_nothing(bad):
    out = np.zeros((5, 2), "float32")
    with pytest.raises(IndexError, match=rf"index_add: .*index\[1\] is {bad}, expected 0..4"):
        embedding.index_add(out, np.array([0, bad]), np.ones((2, 2), "float32"))
    assert (out == 0).all()
    assert embedding.add_rows(out, np.array([0, bad]), np.ones((2, 2), "float32")) == 1
    assert (out == 0).all()
    with pytest.raises(IndexError, match="embedding: index out of range"):
        embedding.embedding_backward(np.ones((1, 2), "float32"), np.array([bad]), 5)
