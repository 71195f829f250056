"""DistributedSampler and ShardSampler that go on elsewhere: exactly the samples that were not yet seen."""

import itertools

import pytest

import ddp
from ddp import DistributedSampler, UnrepeatedDistributedSampler
from ddp.testing import on_ranks
from engine import data

COUNT = 48  # samples: any number of ranks up to 4, and batches of 2, fit


def loaders(ranks: int, workers: int = 0, **options) -> list[data.DataLoader]:
    return [
        data.DataLoader(
            range(COUNT), 2, sampler=DistributedSampler(range(COUNT), ranks, rank, **options), num_workers=workers
        )
        for rank in range(ranks)
    ]


def together(iterators) -> list[int]:
    """What all ranks give, in the common order."""
    shares = [[index for batch in batches for index in batch.tolist()] for batches in iterators]
    return [index for row in zip(*shares, strict=True) for index in row]


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [False, True])
def test_other_ranks_see_what_was_not_yet_seen(before, after, shuffle) -> None:
    """The state is the same on all ranks; `set_epoch` of the same epoch keeps the place, the next epoch is whole."""
    first = loaders(before, shuffle=shuffle, seed=3)
    for loader in first:
        loader.sampler.set_epoch(5)
    seen = together([itertools.islice(loader, 2) for loader in first])
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    second = loaders(after, shuffle=shuffle)
    for loader in second:
        loader.load_state_dict(states[0])
        loader.sampler.set_epoch(5)
        assert len(loader) == -(-(COUNT - len(seen)) // (2 * after))
    left = together(second)[: COUNT - len(seen)]
    assert sorted(seen + left) == list(range(COUNT))
    assert sorted(set(together(second))) == list(range(COUNT))
    for loader in (*first, *second):
        loader.sampler.set_epoch(6)
    assert together(second)[:COUNT] == together(first)[:COUNT]


@pytest.mark.full
def test_what_workers_prepared_was_not_seen() -> None:
    first = loaders(2, workers=2)
    seen = together([itertools.islice(loader, 3) for loader in first])
    second = loaders(3, workers=1)
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    assert sorted(seen + together(second)) == list(range(COUNT))


def test_twice_in_an_epoch() -> None:
    seen: list[int] = []
    state = loaders(1)[0].state_dict()
    for ranks in (2, 3, 1):
        going_on = loaders(ranks)
        for loader in going_on:
            loader.load_state_dict(state)
        seen += together([itertools.islice(loader, 2) for loader in going_on])
        state = going_on[-1].state_dict()
    assert len(set(seen)) == len(seen) == 2 * 2 * 6


def test_the_end_of_an_epoch_is_the_same_on_all_ranks() -> None:
    samplers = [UnrepeatedDistributedSampler(range(10), 3, rank) for rank in range(3)]
    for sampler in samplers:
        list(sampler)
    assert [sampler.state_dict()["seen"] for sampler in samplers] == [10] * 3


def test_another_dataset_or_order_is_refused() -> None:
    state = DistributedSampler(range(10), 2, 0).state_dict()
    with pytest.raises(ValueError, match="with samples 10, this one has 11"):
        DistributedSampler(range(11), 2, 0).load_state_dict(state)
    with pytest.raises(ValueError, match="with shuffle True, this one has False"):
        DistributedSampler(range(10), 2, 0, shuffle=False).load_state_dict(state)


@on_ranks(1, 2, 4)
def test_a_jobs_loader_goes_on_at_its_step() -> None:
    """Beside the job, whose step is its place; all in one checkpoint's state."""
    job, again = ddp.Job(shards=4), ddp.Job(shards=4)
    sampler = ddp.ShardSampler(range(24), 8, job)
    loader = data.DataLoader(range(24), batch_sampler=sampler)
    batches = iter(loader)

    def step() -> list[list[int]]:
        found = [next(batches).tolist() for _ in job.carried]
        job.step += 1
        return found

    step()
    state, place = job.state_dict(), loader.state_dict()
    expected = step()
    other = data.DataLoader(range(24), batch_sampler=ddp.ShardSampler(range(24), 8, again))
    other.load_state_dict(place)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in itertools.islice(other, len(again.carried))] == expected
    with pytest.raises(ValueError, match="with batch_size 8, this one has 12"):
        ddp.ShardSampler(range(24), 12, job).load_state_dict(sampler.state_dict())
