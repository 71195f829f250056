"""Arithmetic with an operand that repeats, bit by bit as NumPy's."""

import operator

import numpy as np
import pytest

import engine
from engine.ops.pointwise import kernels, repeating
from tests.engine.kernels.samples import DTYPES, normal

FUNCTIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
# The whole, and what repeats along axes of it: once a line, or in up to three ways; and what no kernel does.
SHAPES = [
    ((300, 256), (256,)),
    ((300, 256), (300, 1)),
    ((8, 20, 25, 25), (20, 1, 1)),
    ((8, 20, 25, 25), (8, 20, 1, 1)),
    ((8, 20, 25, 25), (8, 1, 25, 25)),
    ((8, 100, 100), (100, 1)),
    ((4, 8, 50, 65), (4, 1, 1, 65)),
    ((1, 1, 300, 300), (300, 1)),
    ((70_000,), (1,)),
    ((70, 1000), (1, 1)),
    ((4100, 17), (17,)),
    ((6, 5, 4, 7, 90), (6, 1, 4, 1, 90)),
]


@pytest.fixture
def calls(monkeypatch):
    """How often the kernel was called."""
    seen = []
    combine = kernels.combine
    monkeypatch.setattr(kernels, "combine", lambda *given: (seen.append(given[0]), combine(*given)))
    return seen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("shape", "other"), SHAPES)
def test_results_and_gradients(shape, other, name, dtype):
    function, x, y, slope = FUNCTIONS[name], normal(shape, dtype), normal(other, dtype, seed=1), normal(shape, dtype, 2)
    for first, second in ((x, y), (y, x)):
        a, b = (engine.from_numpy(one).requires_grad_() for one in (first, second))
        result = function(a, b)
        assert np.array_equal(result.detach().numpy(), function(first, second))
        result.backward(engine.from_numpy(slope))
        expected = {
            "add": (slope, slope),
            "sub": (slope, -slope),
            "mul": (slope * second, slope * first),
            "div": (slope / second, slope * ((first / second) / -second)),
        }
        for leaf, gradient in zip((a, b), expected[name], strict=True):
            if leaf.shape == shape:
                assert np.array_equal(leaf.grad.numpy(), gradient)


@pytest.mark.parametrize("other", [(8, 20, 1, 1), (20, 1, 1), (8, 1, 25, 25), (25, 25)])
def test_channels_last(other):
    x, y = normal((8, 20, 25, 25), "float32"), normal(other, "float32", seed=1)
    for format_of_other in (engine.contiguous_format, engine.channels_last):
        a, b = engine.from_numpy(x).contiguous(memory_format=engine.channels_last), engine.from_numpy(y)
        if b.ndim == 4:
            b = b.contiguous(memory_format=format_of_other)
        result = a * b
        assert result.is_contiguous(memory_format=engine.channels_last)
        assert np.array_equal(result.numpy(), x * y)


def test_where_the_kernel_serves(calls):
    x, row = engine.randn(300, 256), engine.randn(256)
    for result in (x * row, row - x, x / row, x + row):
        assert result.shape == x.shape
    assert calls == [kernels.MULTIPLY, kernels.SUBTRACTED, kernels.DIVIDE, kernels.ADD]
    for a, b in (
        (x, x),
        (x, 2.0),
        (x.double(), row),
        (x[:100], row),
        (x[:, ::2], row[::2]),
        (x, engine.randn(300, 256)),
    ):
        assert (a * b).shape == a.shape
    assert len(calls) == 4


def test_arrays_that_lie_otherwise_are_multiplied_by_numpy():
    x, y = normal((300, 256), "float32"), normal(256, "float32", seed=1)
    for whole, other in ((x[:, ::-1], y), (x, y[::-1]), (x[::2], y), (x, x.astype("float64")), (y, x)):
        assert np.array_equal(repeating.times(whole, other), whole * other)
        assert np.array_equal(repeating.over(whole, other), whole / other)
