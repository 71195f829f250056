"""Sums of slices in rank order and in that of a tree, without any rank."""

import math

import ml_dtypes
import numpy as np
import pytest

from ddp.transport.base import ACCUMULATORS, accumulator_dtype, aligned_zeros, slice_bounds
from ddp.transport.order import carried, tree_order
from ddp.transport.shards import Shards
from ddp.transport.summing import BLOCK_BYTES, Summation, weighing


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


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex64, np.float16, np.int32])
@pytest.mark.parametrize("step", [1, 2])
def test_rows_of_an_array_are_summed_like_arrays(dtype, step: int) -> None:
    """Rows may lie apart; what is between them is not looked at."""
    for ranks, count in ((1, 5), (3, 0), (3, 17), (70, 33)):
        rows = (1000 * np.random.default_rng(count).standard_normal((ranks, step * count))).astype(dtype)[:, :count]
        weighted = [[0.5 * (rank % 3) for rank in range(ranks)]] if np.dtype(dtype).kind != "i" else []
        for weights in (None, *weighted):
            one, other = np.zeros(count, dtype), np.zeros(count, dtype)
            Summation(rows, [one]).run(1, weights)
            Summation(list(rows), [other]).run(1, weights)
            assert one.tobytes() == other.tobytes()


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


def tree_sum(leaves: list[np.ndarray]) -> np.ndarray:
    """The definition."""
    middle = len(leaves) // 2
    return leaves[0] if len(leaves) == 1 else tree_sum(leaves[:middle]) + tree_sum(leaves[middle:])


def leaves_of(shards: int, count: int, dtype: np.dtype) -> list[np.ndarray]:
    """Numbers of very different sizes, so that another order gives other bits."""
    rng = np.random.default_rng(shards)
    return [(rng.standard_normal(count) * 10.0 ** rng.integers(-4, 5, count)).astype(dtype) for _ in range(shards)]


def summed_by_ranks(leaves: list[np.ndarray], ranks: int, weights: list[float]) -> np.ndarray:
    """What `ranks` ranks make of the leaves, each of its own first."""
    order = tree_order(len(leaves), ranks)
    dtype, count = leaves[0].dtype, leaves[0].size
    parts = []
    for rank in range(ranks):
        array = np.zeros(count, dtype)
        slots = [np.zeros(count, accumulator_dtype(dtype)) for _ in range(order.slots(dtype))]
        stack = Shards(array, slots, order.own[rank])
        for shard in carried(len(leaves), rank, ranks):
            array[:] = leaves[shard]
            stack.add(weights[shard])
        assert len(stack.parts) == order.parts[rank]
        parts += stack.parts
    out = np.zeros(count, dtype)
    Summation(parts, [out], order.merges).average(weights)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 12, 16])
def test_any_number_of_ranks_sums_shards_to_the_same_bits(shards: int, dtype) -> None:
    leaves = leaves_of(shards, 1000, np.dtype(dtype))
    wide = accumulator_dtype(dtype)
    expected = (tree_sum([leaf.astype(wide) for leaf in leaves]) / wide.type(shards)).astype(dtype)
    for ranks in range(1, shards + 1):
        found = summed_by_ranks(leaves, ranks, [1.0] * shards)
        if np.dtype(dtype).kind == "c":
            assert np.array_equal(found, summed_by_ranks(leaves, 1, [1.0] * shards))
            np.testing.assert_allclose(found, expected, rtol=1e-4)
        else:
            assert found.tobytes() == expected.tobytes(), ranks


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, ml_dtypes.bfloat16])
def test_weights_of_shards_do_not_depend_on_the_ranks_either(dtype) -> None:
    leaves = leaves_of(12, 200, np.dtype(dtype))
    leaves[5][:] = np.nan  # of weight 0, so nobody looks at it
    weights = [3.0, 1.0, 7.0, 2.0, 2.0, 0.0, 5.0, 1.0, 1.0, 4.0, 9.0, 6.0]
    bits = {summed_by_ranks(leaves, ranks, weights).tobytes() for ranks in range(1, 13)}
    assert len(bits) == 1
    assert np.isfinite(np.frombuffer(bits.pop(), dtype).astype(np.complex128)).all()


def test_a_rank_needs_few_accumulators() -> None:
    """None where every rank has one shard, and never more than twice the tree's height."""
    for shards in range(1, 70):
        for ranks in range(1, shards + 1):
            order = tree_order(shards, ranks)
            assert order.slots(np.dtype(np.float32)) <= 2 * math.ceil(math.log2(shards))
            assert max(order.parts) <= max(1, 2 * math.ceil(math.log2(shards)))
            if ranks == shards:
                assert order.slots(np.dtype(np.float32)) == 0
    assert tree_order(12, 1).parts == (1,)
    assert tree_order(16, 4).parts == (1, 1, 1, 1)


def test_sums_that_are_left_over_go_to_one_target_each() -> None:
    addends = leaves_of(3, 5, np.dtype(np.float32))
    targets = [np.zeros(5, np.float32) for _ in range(2)]
    Summation(addends, targets, (0, 0, 1)).run()
    assert np.array_equal(targets, [addends[0], addends[1] + addends[2]])


def test_weights_that_are_in_the_addends_are_only_divided_by() -> None:
    assert weighing([2.0, 2.0]) == (2, None)
    assert weighing([2.0, 1.0]) == (3.0, [2.0, 1.0])
    assert weighing([2.0, 2.0], weighed=True) == (4.0, None)
