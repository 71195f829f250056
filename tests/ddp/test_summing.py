"""Sums of slices in rank order, without any rank."""

import ml_dtypes
import numpy as np
import pytest

from ddp.transport.base import ACCUMULATORS, accumulator_dtype, aligned_zeros, slice_bounds
from ddp.transport.summing import BLOCK_BYTES, Summation


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_every_dtype_is_summed_in_one_at_least_as_wide(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    assert dtype.name == name
    assert accumulator_dtype(dtype).itemsize >= max(dtype.itemsize, 4 if dtype.kind not in "iu" else 1)


def test_unknown_dtypes_list_the_known_ones() -> None:
    with pytest.raises(TypeError, match="dtype uint32 are not summed, expected one of float16, bfloat16, float32"):
        accumulator_dtype(np.uint32)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("divisor", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, BLOCK_BYTES // 8 - 1, BLOCK_BYTES // 8, BLOCK_BYTES // 4 + 3])
def test_targets_may_be_the_addends(ranks: int, divisor: int, count: int) -> None:
    addends = [np.random.default_rng(rank).standard_normal(count) for rank in range(ranks)]
    expected = addends[0].copy()
    for addend in addends[1:]:
        expected = expected + addend
    expected = expected / divisor
    for order in (addends, addends[::-1]):
        arrays = [addend.copy() for addend in addends]
        targets = [arrays[[id(a) for a in addends].index(id(addend))] for addend in order]
        Summation(arrays, targets).run(divisor)
        for array in arrays:
            assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_rounds_once(dtype) -> None:
    """2048 + 1 + 1 in float16 is 2050 when summed in float32, but 2048 when rounded after each addition."""
    unit = 2.0 ** (11 if dtype is np.float16 else 8)
    out = np.zeros(1, dtype)
    Summation([np.array([value], dtype) for value in (unit, 1, 1)], [out]).run()
    assert float(out[0]) == unit + 2


def test_overflow_is_silent() -> None:
    largest = np.array([np.finfo(np.float32).max], np.float32)
    out = np.zeros(1, np.float32)
    Summation([largest, largest], [out]).run(0.5)
    assert out[0] == np.inf


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_slices_are_whole_cache_lines_and_cover_everything(count: int, parts: int, itemsize: int) -> None:
    bounds = slice_bounds(count, itemsize, parts)
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert len(bounds) == parts + 1
    assert bounds == sorted(bounds)
    assert all(bound * itemsize % 64 == 0 for bound in bounds if bound != count)


def test_aligned_zeros() -> None:
    for count in (1, 1000):
        array = aligned_zeros(count, np.float64)
        assert array.shape == (count,)
        assert not array.any()
        assert array.ctypes.data % 64 == 0
