"""Steps of LSTM and GRU against their formulation in array operations."""

import numpy as np
import pytest

from engine.ops.rnn import cells
from engine.ops.rnn import kernels as rnn
from tests.engine.kernels.samples import DTYPES, close, normal


def both(name, dtype, gates, size, batch=5, scale=2.0):
    """Arguments of a forward step twice: gates, recurrent, bias, state, and two results."""
    drawn = [
        normal((batch, gates * size), dtype, 1, scale),
        normal((batch, gates * size), dtype, 2, scale),
        normal(gates * size, dtype, 3),
        normal((batch, size), dtype, 4),
    ]
    return [[*(array.copy() for array in drawn), *np.full((2, batch, size), np.nan, dtype)] for _ in range(2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 32])
@pytest.mark.parametrize(("name", "gates"), [("lstm_cell", 4), ("gru_cell", 3)])
def test_forward(name, gates, size, dtype):
    ours, plain = both(name, dtype, gates, size)
    getattr(rnn, name)(*ours)
    getattr(cells, name)(np, *plain)
    for actual, expected in zip(ours, plain, strict=True):
        close(actual, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 32])
@pytest.mark.parametrize(("name", "gates", "results"), [("lstm_cell_backward", 4, 1), ("gru_cell_backward", 3, 2)])
def test_backward(name, gates, results, size, dtype):
    batch = 5
    from_output, from_later, carried, first, second = (normal((batch, size), dtype, seed) for seed in range(5))
    activated = 1 / (1 + np.exp(-normal((batch, gates * size), dtype, 9)))
    sides = []
    for _ in range(2):
        targets = np.full((results, batch, gates * size), np.nan, dtype)
        sides.append([from_output, from_later, carried.copy(), activated, first, second, *targets])
    getattr(rnn, name)(*sides[0])
    getattr(cells, name)(np, *sides[1])
    for actual, expected in zip(*sides, strict=True):
        close(actual, expected, dtype, 4.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_saturated_gates(dtype):
    """Sums far from 0 give 0 and 1, no NaN."""
    size = 3
    gates = np.full((1, 4 * size), 200, dtype) * np.repeat(np.array([1, -1, -1, 1], dtype), size)
    state, cell, hidden = normal((1, size), dtype), np.empty((1, size), dtype), np.empty((1, size), dtype)
    rnn.lstm_cell(gates, np.zeros_like(gates), np.zeros(4 * size, dtype), state, cell, hidden)
    np.testing.assert_array_equal(cell, np.full((1, size), -1, dtype))
    close(hidden, np.full((1, size), np.tanh(-1.0)), dtype)


def test_empty_batch():
    empty = [np.empty(shape, np.float32) for shape in ((0, 8), (0, 8), (8,), (0, 2), (0, 2), (0, 2))]
    rnn.lstm_cell(*empty)
