"""DistributedSampler: who gets which samples (row H25 of the checklist)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp import DistributedSampler, UnrepeatedDistributedSampler
from ddp.world import bootstrap


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


@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 5))
def test_without_repetition_each_index_is_on_one_rank(count, ranks, epoch) -> None:
    samplers = [UnrepeatedDistributedSampler(range(count), ranks, rank) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    drawn = [list(sampler) for sampler in samplers]
    assert sorted(itertools.chain.from_iterable(drawn)) == list(range(count))
    assert [len(sampler) for sampler in samplers] == [len(share) for share in drawn]
    assert max(map(len, drawn)) - min(map(len, drawn)) <= 1


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_an_interrupted_epoch_goes_on_with_any_number_of_ranks(count, ranks, later, batch, shuffle) -> None:
    """What was seen before, and what is drawn after `skip`, is every index once, in the common order."""
    order = list(UnrepeatedDistributedSampler(range(count), 1, 0, shuffle, seed=3))
    seen = min(batch * ranks, count)
    samplers = [UnrepeatedDistributedSampler(range(count), later, rank, shuffle, seed=3) for rank in range(later)]
    for sampler in samplers:
        sampler.skip(seen)
    drawn = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(share) for share in drawn]
    rest = [index for step in itertools.zip_longest(*drawn) for index in step if index is not None]
    assert rest == order[seen:]
    for sampler in samplers:
        sampler.set_epoch(0)
    assert sum(map(len, samplers)) == count


@given(st.integers(1, 60), st.integers(1, 5), st.integers(0, 70), st.booleans())
def test_what_is_left_of_an_epoch_is_shared_equally(count, ranks, seen, drop_last) -> None:
    if drop_last and count < ranks:
        return
    samplers = [DistributedSampler(range(count), ranks, rank, False, 0, drop_last) for rank in range(ranks)]
    for sampler in samplers:
        sampler.skip(seen)
    drawn = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(share) for share in drawn]
    assert len(set(map(len, drawn))) == 1
    order = list(itertools.chain.from_iterable(zip(*drawn, strict=True)))
    left = list(range(min(seen, count), count))
    if drop_last:
        assert order == left[: len(left) - len(left) % ranks]
    else:
        assert order[: len(left)] == left
        assert len(order) - len(left) < ranks


def test_skip_takes_no_negative_number() -> None:
    with pytest.raises(ValueError, match="expected the number of samples that were seen, got -1"):
        DistributedSampler(range(7), 2, 0).skip(-1)
