"""Which parameter goes into which bucket, and where it lies there."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.gradients.plan import choose_limits, compute_bucket_assignment, plan_bucket
from ddp.transport.timing import SumTimes

FLOAT, DOUBLE = ("float32", "cpu"), ("float64", "cpu")


# The expectations of PyTorch's ComputeBucketAssignmentTest (row D23 of the checklist).
@pytest.mark.parametrize(
    ("sizes", "keys", "limits", "buckets", "used_limits"),
    [
        ([400, 800, 400, 200], [FLOAT] * 4, [400], [[0], [1], [2], [3]], [400] * 4),
        ([200, 200] * 3, [FLOAT, DOUBLE] * 3, [400], [[0, 2], [1, 3], [4], [5]], [400] * 4),
        ([40] * 4, [FLOAT] * 4, [40, 80], [[0], [1, 2], [3]], [40, 80, 80]),
        ([200, 200] * 3, [FLOAT, DOUBLE] * 3, [200, 400], [[0], [1], [2, 4], [3, 5]], [200, 200, 400, 400]),
    ],
    ids=["single limit, single type", "single limit, two types", "two limits, single type", "two limits, two types"],
)
def test_d23_assignment_of_the_reference(sizes, keys, limits, buckets, used_limits) -> None:
    assert compute_bucket_assignment(sizes, keys, limits) == (buckets, used_limits)


def test_buckets_with_indices_are_in_closing_order() -> None:
    """0 opens a bucket that closes last; the ready order decides, not the index."""
    sizes, keys = [10, 100, 10, 100], [FLOAT, DOUBLE, FLOAT, DOUBLE]
    assert compute_bucket_assignment(sizes, keys, [100], [7, 3, 2, 0])[0] == [[3], [0], [7, 2]]
    assert compute_bucket_assignment(sizes, keys, [100])[0] == [[0, 2], [1], [3]]


def test_a_tensor_larger_than_the_limit_closes_its_bucket() -> None:
    assert compute_bucket_assignment([10, 1000, 10], [FLOAT] * 3, [100])[0] == [[0, 1], [2]]


def test_no_tensors() -> None:
    assert compute_bucket_assignment([], [], [100]) == ([], [])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="expected at least one limit"):
        compute_bucket_assignment([1], [FLOAT], [])
    with pytest.raises(ValueError, match="got 2 sizes, 1 keys and 2 indices"):
        compute_bucket_assignment([1, 2], [FLOAT], [1])
    with pytest.raises(ValueError, match="got 1 sizes, 1 keys and 2 indices"):
        compute_bucket_assignment([1], [FLOAT], [1], [0, 1])


@given(
    st.lists(st.tuples(st.integers(0, 500), st.sampled_from([FLOAT, DOUBLE])), max_size=40),
    st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_every_tensor_is_in_one_bucket_of_its_kind(tensors, limits, random) -> None:
    sizes, keys = [size for size, _ in tensors], [key for _, key in tensors]
    names = list(range(len(tensors)))
    random.shuffle(names)
    for indices in (None, names):
        buckets, used = compute_bucket_assignment(sizes, keys, limits, indices)
        place = {name: position for position, name in enumerate(names if indices else range(len(tensors)))}
        assert sorted(name for bucket in buckets for name in bucket) == sorted(place)
        assert set(used) <= set(limits)
        for bucket, limit in zip(buckets, used, strict=True):
            assert len({keys[place[name]] for name in bucket}) == 1
            assert [place[name] for name in bucket] == sorted(place[name] for name in bucket)
            assert sum(sizes[place[name]] for name in bucket[:-1]) < limit


def test_views_have_the_strides_of_dense_parameters_and_are_row_major_otherwise() -> None:
    shapes = [(3,), (2, 3, 4, 5), (4, 6), (2, 3), ()]
    strides = [(1,), (60, 1, 15, 3), (1, 4), (1, 0), ()]
    layout = plan_bucket([4, 1, 3, 0, 2], shapes, strides, itemsize=4)
    assert [slot.index for slot in layout.slots] == [4, 1, 3, 0, 2]
    assert [slot.offset for slot in layout.slots] == [0, 16, 144, 160, 176]
    assert [slot.stride for slot in layout.slots] == [(), (60, 1, 15, 3), (3, 1), (1,), (1, 4)]
    assert [slot.shape for slot in layout.slots] == [shapes[slot.index] for slot in layout.slots]
    assert layout.count == 200


layouts = st.lists(st.integers(0, 4), max_size=4).flatmap(
    lambda shape: st.permutations(range(len(shape))).map(lambda order: (tuple(shape), dense_strides(shape, order)))
)


def dense_strides(shape, order):
    stride, step = [0] * len(shape), 1
    for dimension in order:
        stride[dimension], step = step, step * max(shape[dimension], 1)
    return tuple(stride)


@given(st.lists(layouts, max_size=8), st.sampled_from([1, 2, 4, 8, 16]))
def test_views_are_aligned_and_share_no_element(parameters, itemsize) -> None:
    shapes, strides = [shape for shape, _ in parameters], [stride for _, stride in parameters]
    layout = plan_bucket(range(len(parameters)), shapes, strides, itemsize)
    uses = np.zeros(layout.count, np.int64)
    for slot in layout.slots:
        assert slot.offset * itemsize % 64 == 0
        assert slot.stride == strides[slot.index] or math.prod(slot.shape) == 0
        view = np.lib.stride_tricks.as_strided(uses[slot.offset :], slot.shape, [8 * step for step in slot.stride])
        view += 1
    assert uses.max(initial=0) <= 1
    assert uses.sum() == sum(math.prod(shape) for shape in shapes)


@pytest.mark.parametrize(
    ("times", "limits"),
    [
        (None, [1 << 20, 25 << 20]),  # PyTorch's
        (SumTimes(1e-4, 1e-8), [10**6, 10**6]),  # the root of 10^8 * 10^4
        (SumTimes(1e-2, 1e-8), [1 << 20, 10**7]),
        (SumTimes(1e-7, 1e-8), [1 << 18, 1 << 18]),
        (SumTimes(1.0, 1e-9), [1 << 20, 25 << 20]),
        (SumTimes(1e-4, 0.0), [1 << 20, 25 << 20]),
    ],
)
def test_limits_follow_from_what_a_sum_takes(times: SumTimes | None, limits: list[int]) -> None:
    assert choose_limits(10**8, times) == limits
