"""Rows combined where they meet, and weighted sums along an axis: values of every element type, accesses checked."""

import ml_dtypes
import numpy as np
import pytest

import engine
from engine.memory import backend
from engine.ops.index import cuda as scatter
from engine.ops.resample import cuda as resample
from tests import cuda_device

TYPES = list(map(np.dtype, ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool")))
TYPES.append(np.dtype(ml_dtypes.bfloat16))


def whole(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Numbers whose sums and products are exact in every type."""
    return np.random.default_rng(seed).integers(0, 3, shape).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("operation", ["add", "multiply", "maximum", "minimum"])
def test_combine(cuda: engine.device, operation: str, dtype: np.dtype) -> None:
    cupy = backend.require_cupy()
    with cuda_device.checked(seed=3):
        for count, rows, width in ((1, 1, 1), (7, 3, 5), (300, 4, 1), (5, 9, 130), (0, 3, 2), (4, 3, 0)):
            target, values = whole((rows, width), dtype, 1), whole((count, width), dtype, 2)
            keys = np.random.default_rng(3).integers(0, rows, count)
            there = cupy.asarray(target)
            scatter.combine(operation, there, cupy.asarray(keys), cupy.asarray(values))
            wide = target.astype(np.float64) if dtype.kind == "V" else target
            getattr(np, operation).at(wide, keys, values.astype(wide.dtype))
            np.testing.assert_array_equal(there.get(), wide.astype(dtype))


def test_sums_are_made_in_order(cuda: engine.device) -> None:
    """Floating point sums do not depend on threads: always from the first row to the last."""
    cupy = backend.require_cupy()
    values = np.random.default_rng(1).standard_normal((1000, 3)).astype(np.float32)
    keys = np.random.default_rng(2).integers(0, 2, 1000)
    expected = np.zeros((2, 3), np.float32)
    np.add.at(expected, keys, values)
    for seed in range(3):
        with cuda_device.checked(seed):
            target = cupy.zeros((2, 3), np.float32)
            scatter.combine("add", target, cupy.asarray(keys), cupy.asarray(values))
        np.testing.assert_array_equal(target.get(), expected)


def test_nan_is_the_extremum_of_what_it_meets(cuda: engine.device) -> None:
    cupy = backend.require_cupy()
    for operation in ("maximum", "minimum"):
        target = cupy.asarray(np.array([[1.0], [2.0]]))
        values = cupy.asarray(np.array([[np.nan], [5.0], [3.0]]))
        scatter.combine(operation, target, cupy.asarray(np.array([0, 0, 1])), values)
        found = target.get()[:, 0]
        assert np.isnan(found[0])
        assert found[1] == (3.0 if operation == "maximum" else 2.0)


@pytest.mark.parametrize("dtype", [each for each in TYPES if each.kind in "fV"], ids=str)
def test_weighted_sums(cuda: engine.device, dtype: np.dtype) -> None:
    cupy = backend.require_cupy()
    with cuda_device.checked(seed=5):
        for outer, size, inner, count, terms in ((1, 1, 1, 1, 1), (3, 5, 4, 7, 2), (2, 6, 1, 3, 4), (0, 3, 2, 2, 1)):
            values = whole((outer, size, inner), dtype, 1)
            indices = np.random.default_rng(2).integers(-1, size, (terms, count))
            weights = whole((terms, count), np.dtype("f8" if dtype == np.float64 else "f4"), 3) / 2
            out = cupy.empty((outer, count, inner), dtype)
            resample.weighted_sums(*map(cupy.asarray, (values, indices, weights)), out)
            taken = np.where(indices[..., None] >= 0, values.astype("f8")[:, indices], 0)
            expected = (taken * weights[..., None]).sum(axis=1)
            np.testing.assert_array_equal(out.get(), expected.astype(dtype))
