"""A loader in a checkpoint: another number of ranks goes on in the midst of an epoch, sample by sample."""

import pytest

import ddp
from ddp import checkpoint
from ddp.testing import run_ranks
from engine import data

COUNT, GLOBAL = 60, 12  # samples of an epoch, and of a step


def train(folder, steps: int) -> list[list[int]]:
    """Samples of this rank in each of the steps it does."""
    each = GLOBAL // ddp.get_world_size()
    sampler = ddp.DistributedSampler(range(COUNT))
    state = {"loader": data.DataLoader(range(COUNT), each, sampler=sampler), "epoch": 0}
    seen: list[list[int]] = []
    with checkpoint.Manager(folder, state, every=1) as manager:
        step = manager.restore()
        while True:
            sampler.set_epoch(state["epoch"])
            for batch in state["loader"]:
                seen.append(batch.tolist())
                step += 1
                manager.step(step)
                if step == steps:
                    return seen
            state["epoch"] += 1


@pytest.mark.parametrize("sizes", [(1, 2, 3), (4, 1, 2), (3, 4, 4), (2, 6, 1)])
def test_exactly_the_samples_not_yet_seen(tmp_path, sizes) -> None:
    """Steps 1 to 3, then on other ranks to 7, in the next epoch, then to 10: two whole epochs; as one rank would."""
    steps: list[list[int]] = []
    for ranks, end in zip(sizes, (3, 7, 10), strict=True):
        shares = run_ranks(ranks, lambda end=end: train(tmp_path / "a", end))
        steps += [sorted(index for share in of_ranks for index in share) for of_ranks in zip(*shares, strict=True)]
    assert steps == [sorted(batch) for batch in run_ranks(1, lambda: train(tmp_path / "b", 10))[0]]
    for epoch in (steps[:5], steps[5:]):
        assert sorted(index for step in epoch for index in step) == list(range(COUNT))
