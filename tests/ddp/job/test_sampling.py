"""Which samples belong to which shard; without ranks."""

import pytest

import ddp
from ddp.testing import on_ranks


@on_ranks(1, 2, 3)
def test_shards_have_the_same_samples_on_any_number_of_ranks() -> None:
    job = ddp.Job(shards=6, seed=2)
    sampler = ddp.ShardSampler(range(40), 12, job)
    assert len(sampler) == 3
    batches = iter(sampler)
    for step in range(7):
        own = {shard: next(batches) for shard in job.carried}
        everyones = {shard: indices for each in job.process_group.exchange(own) for shard, indices in each.items()}
        assert list(everyones) == list(range(6))
        seen = [index for indices in everyones.values() for index in indices]
        assert len(set(seen)) == 12
        assert len({indices.seed for indices in everyones.values()}) == 6
        # The samples that one rank of a plain job would have, of so many.
        for shard, indices in everyones.items():
            plain = ddp.DistributedSampler(range(40), 6, shard, seed=2)
            plain.set_epoch(step // 3)
            begin = step % 3 * 2
            assert list(plain)[begin : begin + 2] == indices
        if step == 4:  # from here on, by another iteration
            job.step = 5
            assert [next(batches) for _ in job.carried] == [
                indices for indices, _ in zip(iter(sampler), job.carried, strict=False)
            ]
            batches = iter(sampler)


@on_ranks(2)
def test_batches_that_do_not_divide_are_refused() -> None:
    job = ddp.Job(shards=6)
    with pytest.raises(ValueError, match="batch_size 8 does not divide over 6 shards: give a multiple of 6"):
        ddp.ShardSampler(range(40), 8, job)
    with pytest.raises(ValueError, match="batch_size 48 is more than the dataset has, 40"):
        ddp.ShardSampler(range(40), 48, job)
