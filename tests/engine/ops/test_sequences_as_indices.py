"""A list that is an index: of numbers it is a tensor of indices, with more in it a tuple, as in PyTorch 2.13."""

import numpy as np
import pytest

import engine

X = engine.arange(60).reshape(3, 4, 5)

AS_TUPLES = {
    "lists": [[0, 1], [1, 2]],
    "a slice and a list": [slice(None), [1, 2]],
    "one list": [[0, 1]],
    "None": [None, 0],
    "an ellipsis": [..., 1],
    "tensors": [engine.tensor([0, 1]), engine.tensor([1, 2])],
    "0-dim tensors": [engine.tensor(0), engine.tensor(1)],
    "arrays": [np.array([0, 1]), np.array([1, 2])],
    "tuples": [(0, 1), (1, 2)],
    "a mask": [[True, False, True]],
    "a number and a list": [0, [1, 2]],
    "ranges": [range(2), range(1, 3)],
}


@pytest.mark.parametrize("name", AS_TUPLES)
def test_a_list_with_more_than_numbers_is_a_tuple(name):
    key = AS_TUPLES[name]
    with pytest.warns(UserWarning, match="non-tuple sequence for multidimensional indexing") as caught:
        read = X[key]
    assert caught[0].filename == __file__
    assert read.tolist() == X[tuple(key)].tolist()
    written, expected = X.clone(), X.clone()
    expected[tuple(key)] = -1
    with pytest.warns(UserWarning, match="non-tuple sequence"):
        written[key] = -1
    assert written.tolist() == expected.tolist()


@pytest.mark.parametrize("key", [[0, 1], [], [True, False, True], [np.int64(0), 1]], ids=repr)
def test_a_list_of_numbers_is_a_tensor(key):
    assert X[key].tolist() == X.numpy()[np.array(key, dtype=None if key else int)].tolist()


def test_a_long_list_of_lists_is_a_tensor():
    assert X[[[0, 1]] * 33].shape == (33, 2, 4, 5)
    assert X[np.array([[0, 1], [1, 2]])].shape == (2, 2, 4, 5)
