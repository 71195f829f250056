"""A loader that goes on until the last rank is out of data: the loop around it is an ordinary one."""

from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.hooks import PowerSGDState, allreduce_hook, powerSGD_hook
from engine.optim import AdamW
from tests.ddp.models import TASKS, Weights, batch, build, gradients, loss_of

RANKS = pytest.mark.mpi(ranks=[1, 2, 3, 4])
SIZES = {
    "rising": [1, 2, 3, 4],
    "rank 0 is longest": [5, 2, 3, 1],
    "some have none": [0, 4, 0, 2],
    "even": [3, 3, 3, 3],
}


@RANKS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hook"])
def test_the_mean_is_over_the_ranks_that_have_data(group, sizes, hooked) -> None:
    net = DistributedDataParallel(Weights("a", "b", "c"), bucket_cap_mb=1e-5)
    if hooked:
        net.register_comm_hook(None, allreduce_hook)
    sizes = sizes[: group.size()]
    for _ in range(2):  # epochs
        own = [12.0 * (group.rank + 1) * (step + 1) for step in range(sizes[group.rank])]
        batches = ddp.uneven(own, net)
        seen, steps = [], 0
        for value in batches:
            net.zero_grad()
            used = {"a": value, "b": 12} if group.rank == group.size() - 1 else {"a": value}
            net(**used).backward()
            active = [rank for rank, size in enumerate(sizes) if size > steps]
            expected = sum(12.0 * (rank + 1) * (steps + 1) for rank in active) / len(active)
            # b counts as used where a rank that has data uses it
            b = 12 / len(active) if group.size() - 1 in active else None
            found = gradients(net)
            assert found["a"] == pytest.approx(expected, rel=1e-6)
            assert found["c"] is None
            assert found["b"] == (None if b is None else pytest.approx(b, rel=1e-6))
            assert batches.standing_in == (steps >= sizes[group.rank])
            if not batches.standing_in:
                seen.append(value)
            steps += 1
        assert seen == own
        assert steps == max(sizes)
        assert not batches.standing_in
    # all are back in step
    net.zero_grad()
    net(a=12.0 * group.rank).backward()
    assert gradients(net)["a"] == sum(12 * rank for rank in range(group.size())) / group.size()


@RANKS
def test_training_is_one_process_with_all_samples(group) -> None:
    """Weighted by samples, with an optimizer that has state: parameters and state are those of one process."""
    alone = build(TASKS["mlp"], engine.float64)
    net = DistributedDataParallel(build(TASKS["mlp"], engine.float64), bucket_cap_mb=0.0005)
    optimizers = [AdamW(each.parameters(), lr=0.01) for each in (alone, net)]
    lengths = [2, 4, 3, 1][: group.size()]
    inputs, targets = batch(TASKS["mlp"], engine.float64, 0)

    def rows(rank: int, step: int) -> slice:
        begin = 3 * rank
        return slice(begin, begin + 1 + (rank + step) % 3)

    for step in range(max(lengths)):
        chosen = [
            index for rank, length in enumerate(lengths) if step < length for index in range(12)[rows(rank, step)]
        ]
        optimizers[0].zero_grad()
        loss_of(alone, inputs[chosen], targets[chosen]).backward()
        optimizers[0].step()
    own = [rows(group.rank, step) for step in range(lengths[group.rank])]
    for share in ddp.uneven(own, net):
        optimizers[1].zero_grad()
        net.set_gradient_weight(share.stop - share.start)
        loss_of(net, inputs[share], targets[share]).backward()
        optimizers[1].step()
    for mine, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        assert engine.allclose(mine, theirs, rtol=1e-10, atol=1e-12)
        for name, value in optimizers[0].state[theirs].items():
            assert engine.allclose(optimizers[1].state[mine][name], value, rtol=1e-10, atol=1e-12)
    weights = [parameter.tolist() for parameter in net.parameters()]
    assert all(other == weights for other in group.exchange(weights))


@RANKS
def test_accumulation_across_the_end_of_data(group) -> None:
    """Two micro-batches a step; rank r has r + 1, so some steps have one real and one repeated batch."""
    net = DistributedDataParallel(Weights("a"))
    pending = dict.fromkeys(range(group.size()), 0.0)
    for number, value in enumerate(ddp.uneven([12.0] * (group.rank + 1), net)):
        for rank in pending:
            pending[rank] += 12.0 * (number <= rank)
        if number % 2 == 0:
            with net.no_sync():
                net(a=value).backward()
            continue
        net(a=value).backward()
        active = [total for total in pending.values() if total]
        assert gradients(net)["a"] == pytest.approx(sum(active) / len(active), rel=1e-6), number
        net.zero_grad()
        pending = dict.fromkeys(pending, 0.0)


@RANKS
def test_buffers_follow_a_rank_that_has_data(group) -> None:
    """The batch norm's statistics at the end are those of the lowest rank that had data in each step."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    twin = nn.BatchNorm1d(3)
    lengths = [2, 5, 3, 4]
    longest = max(lengths[: group.size()])
    data = np.random.default_rng(0).standard_normal((4, 5, 6, 2)).astype(np.float32)
    for step in range(longest):
        root = next(rank for rank, length in enumerate(lengths) if length > step)
        with engine.no_grad():
            twin(net.module[0](engine.from_numpy(data[root, step])))
    own = [engine.from_numpy(each) for each in data[group.rank, : lengths[group.rank]]]
    for values in ddp.uneven(own, net):
        net.zero_grad()
        net(values).sum().backward()
    if group.size() > 1:  # taken over from rank 1, at the end
        assert engine.allclose(net.module[1].running_mean, twin.running_mean)
        assert engine.allclose(net.module[1].running_var, twin.running_var)
    assert net.module[1].num_batches_tracked.item() == longest


@pytest.mark.mpi(ranks=[2, 3])
def test_two_modules_and_a_stateful_hook(group) -> None:
    nets = [DistributedDataParallel(Weights("a", "b")) for _ in range(2)]
    nets[1].register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    steps = 0
    for value in ddp.uneven([12.0] * (group.rank + 1), *nets):
        for net in nets:
            net.zero_grad()
            net(a=value).backward()
            assert gradients(net) == {"a": 12, "b": None}
        steps += 1
    assert steps == group.size()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_loop_that_does_not_train_is_told_so(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    seen: list[Any] = []

    def evaluate() -> None:
        with engine.no_grad():
            for value in ddp.uneven([12.0] * 2, net):
                seen.append(net(a=value))
                if len(seen) > 5:
                    break

    if group.rank == 0:
        with pytest.raises(
            RuntimeError, match="rank 0 is out of data, and its loop runs no backward through the wrapped"
        ):
            evaluate()
        assert len(seen) == 3
    else:
        with pytest.raises(RuntimeError, match="runs no backward"):
            evaluate()
    net(a=12).backward()
    assert gradients(net) == {"a": 12}


@pytest.mark.mpi(ranks=[2])
def test_nobody_has_data(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    assert list(ddp.uneven([], net)) == []
