"""DistributedSampler: who gets which samples (row H25 of the checklist)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp import DistributedSampler, bootstrap


def shares(count: int, ranks: int, epoch: int = 0, **options) -> list[list[int]]:
    """What each rank gets."""
    samplers = [DistributedSampler(range(count), ranks, rank, **options) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    drawn = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(share) for share in drawn]
    return drawn


def test_h25_shares_are_filled_up_from_the_start() -> None:
    assert shares(10, 4, shuffle=False) == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


def test_h25_shares_are_cut_with_drop_last() -> None:
    assert shares(10, 4, shuffle=False, drop_last=True) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert shares(8, 4, shuffle=False, drop_last=True) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_h25_a_tiny_dataset_is_repeated_as_often_as_it_takes() -> None:
    assert shares(1, 4, shuffle=False) == [[0]] * 4
    assert shares(2, 5, shuffle=False) == [[0], [1], [0], [1], [0]]


@given(st.integers(1, 60), st.integers(1, 7), st.booleans(), st.booleans(), st.integers(0, 3))
def test_shares_are_equal_disjoint_and_cover_the_dataset(count, ranks, shuffle, drop_last, epoch) -> None:
    if drop_last and count < ranks:
        return
    drawn = shares(count, ranks, epoch, shuffle=shuffle, drop_last=drop_last)
    assert len({len(share) for share in drawn}) == 1
    order = list(itertools.chain.from_iterable(zip(*drawn, strict=True)))
    if drop_last:
        assert len(order) == len(set(order)) == count - count % ranks
    else:
        assert set(order) == set(range(count))
        assert order[count:] == order[: len(order) - count]


def test_the_order_depends_on_epoch_and_seed_only() -> None:
    first = shares(100, 2)
    assert shares(100, 2) == first
    assert shares(100, 2, epoch=1) != first
    assert shares(100, 2, seed=1) == shares(100, 2, epoch=1)
    whole = shares(100, 1)[0]
    assert [whole[0::2], whole[1::2]] == first
    assert whole != sorted(whole)


@pytest.mark.parametrize(
    ("count", "options", "words"),
    [
        (3, {"drop_last": True}, "the dataset has 3, there are 4 ranks and drop_last is True"),
        (0, {}, "the dataset has 0, there are 4 ranks and drop_last is False"),
    ],
)
def test_a_dataset_without_samples_for_a_rank_is_refused_on_every_rank(count, options, words) -> None:
    for rank in range(4):
        with pytest.raises(ValueError, match=f"no samples for any rank: {words}"):
            DistributedSampler(range(count), 4, rank, **options)


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_outside_the_world_are_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"Invalid rank {rank}, rank should be in the interval \[0, 1\]"):
        DistributedSampler(range(4), 2, rank)


def test_without_a_process_group_the_world_must_be_given() -> None:
    with pytest.raises(ValueError, match="please make sure to call init_process_group"):
        DistributedSampler(range(4))


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_world_and_rank_come_from_the_process_group() -> None:
    world = bootstrap.start_world()
    drawn = world.exchange(list(DistributedSampler(range(10), shuffle=True, seed=5)))
    assert drawn == shares(10, world.size, seed=5)
    bootstrap.stop_world()
