"""Ranks with unequal numbers of batches."""

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.hooks import allreduce_hook
from engine.optim import SGD
from tests.ddp.models import Weights, gradients, mean

RANKS = pytest.mark.mpi(ranks=[1, 2, 3, 4])


def steps_of(rank: int) -> int:
    """Rank 0 is through first, except that rank 3 has no data at all."""
    return [2, 5, 3, 0][rank]


@RANKS
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hook"])
@pytest.mark.parametrize("by_world", [True, False], ids=["world", "active"])
def test_gradients_of_the_ranks_that_have_data(group, by_world, hooked) -> None:
    """H18: divided by all ranks, or by those."""
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=1e-5)
    if hooked:
        net.register_comm_hook(None, allreduce_hook)
    seen = []
    with net.join(divide_by_initial_world_size=by_world):
        for step in range(steps_of(group.rank)):
            net.zero_grad()
            net(a=12.0 * (group.rank + 1)).backward()
            seen.append(gradients(net))
            active = [rank for rank in range(group.size()) if steps_of(rank) > step]
            count = group.size() if by_world else len(active)
            assert seen[-1] == {"a": sum(12.0 * (rank + 1) for rank in active) / count, "b": None}
    assert len(seen) == steps_of(group.rank)
    # all are back in step
    net.zero_grad()
    net(a=12.0 * group.rank, b=12).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r), "b": 12}


@RANKS
def test_in_the_end_all_have_the_model_of_the_last(group) -> None:
    """H16, H22: buffers too."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), broadcast_buffers=True)
    optimizer = SGD(net.parameters(), lr=0.1)
    with net.join():
        for _ in range(steps_of(group.rank)):
            optimizer.zero_grad()
            net(engine.randn(4, 2) + group.rank).square().sum().backward()
            optimizer.step()
    own = [tensor.tolist() for tensor in net.state_dict().values()]
    assert all(other == own for other in group.exchange(own))
    assert net.module[1].num_batches_tracked.item() == max(map(steps_of, range(group.size())))


@RANKS
def test_accumulation_inside(group) -> None:
    """Steps under no_sync are not averaged, so ranks that are through have nothing to do in them."""
    net = DistributedDataParallel(Weights("a"))
    with net.join(divide_by_initial_world_size=False):
        for step in range(steps_of(group.rank)):
            net.zero_grad()
            with net.no_sync():
                net(a=12.0).backward()
            net(a=24.0).backward()
            assert gradients(net) == {"a": 36}, step


@pytest.mark.mpi(ranks=[2, 3])
def test_early_termination_raises_on_every_rank(group) -> None:
    """H21: with words for each role."""
    net = DistributedDataParallel(Weights("a"))
    words = "Rank 0 exhausted all inputs" if group.rank == 0 else "at least one rank that exhausted inputs"

    def train() -> None:
        with net.join(throw_on_early_termination=True):
            for _ in range(steps_of(group.rank)):
                net(a=12.0).backward()

    with pytest.raises(RuntimeError, match=words):
        train()
    net.zero_grad()
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
def test_disabled_it_does_nothing(group) -> None:
    """H19: but train."""
    net = DistributedDataParallel(Weights("a"))
    with net.join(enable=False):
        net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@RANKS
def test_an_exception_inside_is_passed_on(group) -> None:
    """H20: at once."""
    net = DistributedDataParallel(Weights("a"))
    with pytest.raises(KeyError, match="mine"), net.join():
        raise KeyError("mine")
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12 * r)}


@pytest.mark.mpi(ranks=[2])
def test_a_long_wait_is_mentioned(group, monkeypatch) -> None:
    from ddp.training import join

    monkeypatch.setattr(join, "_MANY_STEPS", 3)
    net = DistributedDataParallel(Weights("a"))

    def train() -> None:
        with net.join():
            for _ in range(steps_of(group.rank)):
                net(a=12.0).backward()

    if group.rank == 0:
        with pytest.warns(UserWarning, match="uneven input skew of greater than 3. This means that rank 0"):
            train()
    else:
        train()
