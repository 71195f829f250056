"""Averaging parameters now and then (rows H9, H23 and H24 of the checklist)."""

import copy

import pytest

import engine
import engine.nn as nn
from ddp import (
    DistributedDataParallel,
    HierarchicalModelAverager,
    PeriodicModelAverager,
    PostLocalSGDOptimizer,
    new_subgroups,
)
from ddp.hooks import PostLocalSGDState, post_localSGD_hook
from engine.optim import SGD, AdamW
from tests.ddp.models import Weights, gradients, mean

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])


@RANKS
@pytest.mark.parametrize("as_groups", [False, True], ids=["parameters", "groups"])
def test_periodic(group, as_groups) -> None:
    """H23: averaged in steps 3, 5, 7, ... after a warm-up of 3; every layout and dtype."""
    tensors = [
        engine.zeros(3),
        engine.zeros(2, 3).t(),
        engine.zeros(4, 6)[:, ::2],
        engine.zeros(2, dtype=engine.float64),
        engine.zeros(()),
    ]
    parameters = [nn.Parameter(tensor) for tensor in tensors]
    averager = PeriodicModelAverager(period=2, warmup_steps=3)
    for step in range(8):
        with engine.no_grad():
            for parameter in parameters:
                parameter.fill_(12.0 * group.rank + step)
        versions = [parameter._version for parameter in parameters]
        averager.average_parameters([{"params": parameters}] if as_groups else iter(parameters))
        due = step >= 3 and (step - 3) % 2 == 0
        expected = mean(group, lambda r: 12.0 * r) + step if due else 12.0 * group.rank + step
        for parameter, version in zip(parameters, versions, strict=True):
            assert set(parameter.flatten().tolist()) == {expected}
            assert (parameter._version > version) == due
    assert averager.step == 8


@RANKS
def test_averaged_element_by_element_in_every_layout(group) -> None:
    values = engine.arange(24.0).reshape(2, 3, 4)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        parameter = nn.Parameter((values * 12 * group.rank).permute(order).contiguous().permute(order))
        expected = parameter.detach() * 0 + sum(
            (values * 12 * rank).permute(order).contiguous().permute(order) for rank in range(group.size())
        )
        PeriodicModelAverager(period=2).average_parameters([parameter])
        assert parameter.tolist() == (expected / group.size()).tolist()


@pytest.mark.mpi(ranks=[4])
def test_hierarchical(group) -> None:
    """H23: pairs in every second step, all ranks in every fourth; the largest group that is due."""
    averager = HierarchicalModelAverager({2: 2, 4: 4}, warmup_steps=1)
    parameter = nn.Parameter(engine.zeros(3))
    for step in range(10):
        with engine.no_grad():
            parameter.fill_(12.0 * group.rank)
        averager.average_parameters([parameter])
        everyone = [0.0, 12.0, 24.0, 36.0]
        if step < 1 or (step - 1) % 2:
            expected = everyone[group.rank]
        elif (step - 1) % 4:
            expected = sum(everyone[group.rank // 2 * 2 :][:2]) / 2
        else:
            expected = 18.0
        assert parameter.tolist() == [expected] * 3, step


@pytest.mark.mpi(ranks=[4])
def test_hierarchical_with_one_size_for_several_periods(group) -> None:
    averager = HierarchicalModelAverager({2: 2, 4: 4, 8: 4})
    assert [each.size() for each in averager.period_process_group_dict.values()] == [2, 4, 4]
    parameter = nn.Parameter(engine.full((3,), 12.0 * group.rank))
    averager.average_parameters([parameter])
    assert parameter.tolist() == [18.0] * 3


@RANKS
def test_parameters_that_are_not_floating(group) -> None:
    """Beside others; in the averagers and in the optimizer."""
    for dtype in (engine.int64, engine.int8, engine.bool):
        model = Weights("a")
        alike = nn.Parameter(engine.tensor([-7, 0, 1]).to(dtype), requires_grad=False)
        unlike = nn.Parameter(engine.tensor([group.rank, -group.rank]).to(dtype), requires_grad=False)
        model.alike, model.unlike = alike, unlike
        before = alike.tolist()
        optimizer = PostLocalSGDOptimizer(SGD(model.parameters(), lr=1.0), PeriodicModelAverager(period=2))
        (model(a=12.0 * group.rank)).backward()
        optimizer.step()
        total = sum(range(group.size()))
        assert model.a.tolist() == [-12.0 * total / group.size()] * 3
        assert alike.tolist() == before
        if dtype is not engine.bool:
            assert unlike.tolist() == [total // group.size(), -(total // group.size())]


@RANKS
def test_what_averagers_refuse(group) -> None:
    with pytest.raises(ValueError, match="Arg ``warmup_steps`` must be a non-negative number"):
        PeriodicModelAverager(period=4, warmup_steps=-1)
    with pytest.raises(ValueError, match="Arg ``period`` must be a positive value"):
        PeriodicModelAverager(period=0)
    with pytest.warns(UserWarning, match="When period is 1, no need to use model averaging"):
        PeriodicModelAverager(period=1)
    for sizes, words in (
        ({}, "must not be empty"),
        ({2: 1, 4: 1}, "must be equal to the size"),
        ({0: 1}, "minimum period"),
    ):
        with pytest.raises(ValueError, match=words):
            HierarchicalModelAverager(sizes)
    with pytest.raises(ValueError, match="sizes that each divide the next one"):
        HierarchicalModelAverager({1: group.size() + 1, 2: group.size()})


@RANKS
def test_optimizer(group) -> None:
    """H24: step, then average; the averager's step is saved and loaded, and without it starts at 0 with a warning."""
    plain, model = Weights("a"), Weights("a")
    alone = AdamW(plain.parameters(), lr=0.1)
    optimizer = PostLocalSGDOptimizer(
        AdamW(model.parameters(), lr=0.1), PeriodicModelAverager(period=2, warmup_steps=1)
    )
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    for _ in range(4):
        for net, each in ((plain, alone), (model, optimizer)):
            each.zero_grad()
            net(a=12.0 * group.rank - 5).backward()
            each.step()
        averager.average_parameters(plain.parameters())
    assert model.a.tolist() == plain.a.tolist()
    state = optimizer.state_dict()
    assert state["step"] == 4
    fresh = PostLocalSGDOptimizer(AdamW(model.parameters(), lr=0.5), PeriodicModelAverager(period=2, warmup_steps=1))
    fresh.load_state_dict(state)
    assert (fresh.averager.step, fresh.param_groups[0]["lr"]) == (4, 0.1)
    with pytest.warns(UserWarning, match="does not contain a step counter for an averager"):
        fresh.load_state_dict(alone.state_dict())
    assert fresh.averager.step == 0


@RANKS
@pytest.mark.parametrize("local", [True, False], ids=["subgroup", "nothing"])
def test_hook(group, local) -> None:
    """H9: the mean over all at first, then over the subgroup, or this rank's own gradient."""
    own = new_subgroups(1)[0]
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=1e-5)
    state = PostLocalSGDState(None, own, start_localSGD_iter=2, post_local_gradient_allreduce=local)
    net.register_comm_hook(state, post_localSGD_hook)
    for step in range(4):
        net.zero_grad()
        net(a=12.0 * group.rank, b=12).backward()
        expected = mean(group, lambda r: 12.0 * r) if step < 2 else 12.0 * group.rank
        assert gradients(net) == {"a": expected, "b": 12}


@RANKS
def test_hook_finds_the_ranks_of_its_node(group) -> None:
    net = DistributedDataParallel(Weights("a"))
    net.register_comm_hook(PostLocalSGDState(None, None, 0), post_localSGD_hook)
    net(a=12.0 * group.rank).backward()
    assert gradients(net) == {"a": mean(group, lambda r: 12.0 * r)}  # all are on one node


@RANKS
def test_post_local_sgd_trains(group) -> None:
    """Replicas differ between two averages, and are alike after one."""
    engine.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(3, 1))
    net.register_comm_hook(PostLocalSGDState(None, new_subgroups(1)[0], 2), post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(SGD(net.parameters(), lr=0.1), PeriodicModelAverager(period=3, warmup_steps=2))
    before = copy.deepcopy(net.module)
    different = []
    for _ in range(6):
        optimizer.zero_grad()
        net(engine.ones(2, 3) * (group.rank + 1)).sum().backward()
        optimizer.step()
        everybody = group.exchange(net.module.weight.tolist())
        different.append(any(other != everybody[0] for other in everybody))
    assert different == [False, False, False, True, True, False]
    assert net.module.weight.tolist() != before.weight.tolist()
