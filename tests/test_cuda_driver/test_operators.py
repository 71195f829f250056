"""Operators of engine on CuPy's own kernels, where these have other rules than NumPy."""

import itertools
from types import ModuleType

import numpy as np
import pytest

import engine

inf, nan = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.1, -0.1, 0.3, 7.0, -7.0, 1e30, -1e30, inf, -inf, nan]


@pytest.mark.parametrize("dtype", [engine.float64, engine.float32, engine.bfloat16])
def test_division_that_leaves_whole_numbers_or_rests(cupy: ModuleType, dtype: engine.dtype) -> None:
    pairs = engine.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=dtype)
    for function in (engine.floor_divide, engine.remainder, engine.fmod):
        expected = function(pairs[:, 0], pairs[:, 1]).double().numpy()
        found = function(*pairs.cuda().unbind(1)).cpu().double().numpy()
        np.testing.assert_array_equal(found, expected, function.__name__)
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known], function.__name__)


def test_division_of_integers_and_by_numbers(cupy: ModuleType) -> None:
    x = engine.arange(-7, 8)
    for step in (
        lambda x: x // 3,
        lambda x: x % -3,
        lambda x: 5 // (2 * x + 1),
        lambda x: x.float() % 0.3,
        lambda x: x // 2.0,
        lambda x: engine.div(x, 2, rounding_mode="floor"),
    ):
        assert step(x.cuda()).tolist() == step(x).tolist()


def test_the_gradient_of_a_product_in_bfloat16(cupy: ModuleType) -> None:
    x = engine.tensor([[1.5, 2.0, -3.0], [0.5, 0.0, 4.0]], dtype=engine.bfloat16)
    slopes = []
    for where in ("cpu", "cuda"):
        leaf = x.to(where, copy=True).requires_grad_()
        leaf.prod(1).sum().backward()
        slopes.append(leaf.grad.tolist())
    assert slopes[0] == slopes[1] == [[-6.0, -4.5, 3.0], [0.0, 2.0, 0.0]]
