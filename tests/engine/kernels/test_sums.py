"""Sums over any axes of any layout against numpy's in float64; where and how they are computed shows in no shape."""

import itertools

import numpy as np
import pytest

from engine.ops.reduce.kernels import sums
from engine.ops.reduce.kernels.sums import axis_sums
from tests.engine.kernels.samples import DTYPES, close, normal

SHAPES = ((7, 3, 129, 5), (2, 40, 1, 60), (4097,), (5000, 1), (1, 70, 70), (9, 600))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_choice_of_axes_in_every_layout(shape, keepdims, dtype):
    for order in itertools.permutations(range(len(shape))):
        memory = normal(tuple(shape[axis] for axis in order), dtype)
        x = memory.transpose(np.argsort(order))
        wide = x.astype("float64")
        for number in range(len(shape) + 1):
            for axes in itertools.combinations(range(len(shape)), number):
                found, expected = axis_sums(x, axes, keepdims), wide.sum(axes, keepdims=keepdims)
                assert found.dtype == dtype
                assert found.shape == expected.shape
                close(found, expected, dtype, np.abs(wide).sum(axes).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_with_gaps_and_without_elements(dtype):
    x = normal((70, 140), dtype)[:, ::2]
    close(axis_sums(x, (1,)), x.astype("float64").sum(1), dtype, 100)
    close(axis_sums(x[::-1], (0,)), x.astype("float64").sum(0), dtype, 100)
    spread = np.broadcast_to(normal(70, dtype)[:, None], (70, 70))
    close(axis_sums(spread, (1,)), spread.astype("float64").sum(1), dtype, 100)
    assert axis_sums(np.zeros((0, 3), dtype), (0,)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_summed_alike_wherever_they_lie(dtype):
    row = normal(333, dtype)
    many = np.tile(row, (40, 1))
    assert len(set(axis_sums(many, (1,)).tolist())) == 1
    np.testing.assert_array_equal(axis_sums(many[3:], (1,)), axis_sums(many, (1,))[3:])


def test_what_lies_apart_is_summed_in_numpys_order():
    x = normal((300, 37), "float32")
    np.testing.assert_array_equal(axis_sums(x, (0,)), x.sum(0))


def test_long_sums_keep_their_digits():
    x = np.full(1 << 20, 0.1, "float32")
    assert axis_sums(x, (0,)) == pytest.approx(np.float64(np.float32(0.1)) * x.size, rel=1e-7)


def test_small_arrays_are_left_to_numpy(monkeypatch):
    monkeypatch.setattr(sums, "_planned", None)
    assert axis_sums(np.ones((8, 16), "float32"), (1,)).tolist() == [16] * 8


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "complex64"])
def test_other_dtypes_are_summed_in_themselves(dtype):
    x = np.ones(5000, dtype)
    assert axis_sums(x, (0,)).dtype == dtype
    assert axis_sums(x, (0,)) == np.add.reduce(x, dtype=dtype)
