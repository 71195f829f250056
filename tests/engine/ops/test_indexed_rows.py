"""Rows written and read at index tensors, with places that meet: the sums of numpy.add.at, in the order they come."""

import numpy as np
import pytest

import engine

WIDE, NARROW = (7, 3, 5), (7, 2)


@pytest.mark.parametrize("shape", [WIDE, NARROW])
@pytest.mark.parametrize("kind", [engine.int64, engine.int32])
@pytest.mark.parametrize("places", [[[3, -1], [3, 0]], [2], []])
def test_the_gradient_of_rows(places: list[int], kind: engine.dtype, shape: tuple[int, ...]) -> None:
    x = engine.randn(shape, requires_grad=True)
    index = engine.tensor(places, dtype=kind)
    y = x[index]
    g = engine.randn(y.shape)
    y.backward(g)
    expected = np.zeros(shape, np.float32)
    np.add.at(expected, index.numpy(), g.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("shape", [WIDE, NARROW])
@pytest.mark.parametrize("values", ["rows", "one row", "a number"])
def test_rows_are_added(values: str, shape: tuple[int, ...]) -> None:
    target, index = engine.randn(shape), engine.tensor([1, -3, 1])
    value = {
        "rows": lambda: engine.randn(3, *shape[1:]),
        "one row": lambda: engine.randn(shape[1:]),
        "a number": lambda: engine.tensor(2.5),
    }[values]()
    expected = target.numpy().copy()
    np.add.at(expected, index.numpy(), value.numpy())
    target.index_put_((index,), value, accumulate=True)
    np.testing.assert_array_equal(target.numpy(), expected)


@pytest.mark.parametrize("shape", [WIDE, NARROW])
@pytest.mark.parametrize("place", [7, -8])
def test_a_row_outside_is_refused_and_nothing_is_written(place: int, shape: tuple[int, ...]) -> None:
    target = engine.zeros(shape)
    with pytest.raises(IndexError, match=f"index {place} is out of bounds for dimension 0 with size 7"):
        target.index_put_((engine.tensor([0, place]),), engine.ones(shape[1:]), accumulate=True)
    assert not target.any()
