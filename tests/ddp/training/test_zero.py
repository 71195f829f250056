"""ZeroRedundancyOptimizer: the numbers of the optimizer it wraps, with a share of its state on each rank."""

import copy
from functools import partial
from typing import Any

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel, ZeroRedundancyOptimizer
from engine.nn.utils import clip_grad_norm_
from engine.optim import LBFGS, SGD, Adam, AdamW, Optimizer, RMSprop, lr_scheduler
from tests.ddp.models import ONE_QUICKLY, TASKS, batch, bits, build, loss_of

RANKS = pytest.mark.mpi(ranks=[1, 2, 3, 4])
OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": partial(Adam, lr=0.01, amsgrad=True),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
    "rmsprop": partial(RMSprop, lr=0.01, momentum=0.5, centered=True),
}


def train(group: Any, net: nn.Module, optimizer: Optimizer, steps: range, task: str = "mlp", norm: float = 0) -> None:
    """Steps on this rank's shares of the task's batches."""
    for step in steps:
        inputs, targets = batch(TASKS[task], engine.float32, step)
        share = slice(group.rank, None, group.size())
        optimizer.zero_grad()
        loss_of(net, inputs[share], targets[share]).backward()
        if norm:
            total = clip_grad_norm_(net.parameters(), norm)
            assert len(set(group.exchange(total.item()))) == 1
        optimizer.step()


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    """Weights and biases with options of their own."""
    named = list(net.named_parameters())
    return [
        {"params": [parameter for name, parameter in named if "weight" in name]},
        {"params": [parameter for name, parameter in named if "weight" not in name], "lr": 0.05},
    ]


def twins(task: str = "mlp") -> tuple[DistributedDataParallel, DistributedDataParallel]:
    model = build(TASKS[task], engine.float32)
    return DistributedDataParallel(copy.deepcopy(model)), DistributedDataParallel(model)


@RANKS
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("task", ONE_QUICKLY)
def test_parameters_are_those_of_the_whole_optimizer_to_the_last_bit(group, task, name) -> None:
    """With clipping by the norm of all gradients, parameter groups, and a scheduler."""
    whole, sharded = twins(task)
    ways = [OPTIMIZERS[name](groups_of(whole))]
    ways.append(ZeroRedundancyOptimizer(groups_of(sharded), OPTIMIZERS[name].func, **OPTIMIZERS[name].keywords))
    for net, optimizer in zip((whole, sharded), ways, strict=True):
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(3):
            train(group, net, optimizer, range(step, step + 1), task, norm=0.3)
            scheduler.step()
    assert bits(whole) == bits(sharded)
    assert all(other == bits(sharded) for other in group.exchange(bits(sharded)))


@RANKS
def test_each_parameter_has_state_on_one_rank(group) -> None:
    net, _ = twins()
    optimizer = ZeroRedundancyOptimizer(net.parameters(), AdamW, lr=0.01)
    train(group, net, optimizer, range(1))
    owned = [number for number, parameter in enumerate(net.parameters()) if optimizer.state.get(parameter)]
    everybody = group.exchange(owned)
    assert sorted(number for numbers in everybody for number in numbers) == list(range(6))
    shares = group.exchange(optimizer.share())
    assert sum(share["own"] for share in shares) == shares[0]["all"] == sum(p.numel() for p in net.parameters())
    assert max(share["own"] for share in shares) <= 256 + shares[0]["all"] // group.size()  # the largest is one of 256


@RANKS
def test_a_checkpoint_is_that_of_the_whole_optimizer(group, shared_tmp_path) -> None:
    """Saved with all ranks: it equals what the optimizer alone would have saved, and each loads the other's."""
    whole, sharded = twins()
    alone = AdamW(whole.parameters(), lr=0.01)
    optimizer = ZeroRedundancyOptimizer(sharded.parameters(), AdamW, lr=0.01)
    for net, each in ((whole, alone), (sharded, optimizer)):
        train(group, net, each, range(2))
    with pytest.raises(RuntimeError, match="Optimizer state has not been consolidated on this rank"):
        optimizer.state_dict()
    last = group.size() - 1
    optimizer.consolidate_state_dict(to=last)
    path = shared_tmp_path / "optimizer"
    if group.rank == last:
        found, expected = optimizer.state_dict(), alone.state_dict()
        assert found["param_groups"] == expected["param_groups"]
        assert list(found["state"]) == list(expected["state"])
        for number, values in expected["state"].items():
            for name, value in values.items():
                assert found["state"][number][name].tolist() == value.tolist()
        engine.save(found, path)
    elif group.size() > 1:
        with pytest.raises(RuntimeError, match="not been consolidated"):
            optimizer.state_dict()
    group.exchange(None)
    saved = engine.load(path)
    # the whole optimizer goes on from the shards' checkpoint, and a new set of shards from it as well
    further = AdamW(whole.parameters(), lr=0.5)
    further.load_state_dict(saved)
    again = ZeroRedundancyOptimizer(sharded.parameters(), AdamW, lr=0.5)
    before = {number: sorted(values) for number, values in saved["state"].items()}
    again.load_state_dict(saved)
    assert {number: sorted(values) for number, values in saved["state"].items()} == before
    assert again.param_groups[0]["lr"] == 0.01
    for net, each in ((whole, further), (sharded, again)):
        train(group, net, each, range(2, 4))
    assert bits(whole) == bits(sharded)


@pytest.mark.mpi(ranks=[3])
def test_a_checkpoint_of_fewer_ranks(group) -> None:
    """State of ranks 0 and 1 alone, loaded on all three: the steps after it are those of one process."""
    from ddp import new_group

    pair = new_group([0, 1])
    alone = build(TASKS["mlp"], engine.float32)
    model = copy.deepcopy(alone)
    inputs, targets = batch(TASKS["mlp"], engine.float32, 0)
    state = None

    def step(net: nn.Module, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        loss_of(net, inputs, targets).backward()
        optimizer.step()

    single = AdamW(alone.parameters(), lr=0.01)
    for _ in range(2):
        step(alone, single)
    if group.rank < 2:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, pair, lr=0.01)
        for _ in range(2):
            step(model, optimizer)
        optimizer.consolidate_state_dict()
        state = optimizer.state_dict() if group.rank == 0 else None
    weights, state = group.comm.bcast((model.state_dict(), state), 0)
    model.load_state_dict(weights)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01)
    optimizer.load_state_dict(state)
    for _ in range(2):
        step(alone, single)
        step(model, optimizer)
    assert bits(model) == bits(alone)


@pytest.mark.mpi(ranks=[2, 3])
def test_unused_parameters_closures_and_later_groups(group) -> None:
    nets = twins()
    ways: list[Optimizer] = []
    for net, make in zip(nets, (SGD, lambda p, **o: ZeroRedundancyOptimizer(p, SGD, **o)), strict=True):
        optimizer = make([net.module[0].weight, net.module[2].bias], lr=0.1, momentum=0.5)
        optimizer.add_param_group({"params": [net.module[4].weight], "lr": 0.2})
        ways.append(optimizer)
        for step in range(3):
            net.module[2].bias.requires_grad_(step != 1)

            def closure(net: Any = net, optimizer: Any = optimizer, step: int = step) -> engine.Tensor:
                inputs, targets = batch(TASKS["mlp"], engine.float32, step)
                optimizer.zero_grad()
                loss = loss_of(net, inputs, targets)
                loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0
    assert bits(nets[0]) == bits(nets[1])


@pytest.mark.mpi(ranks=[1, 2])
def test_saved_tensors_notice_the_update_of_every_rank(group) -> None:
    net = DistributedDataParallel(nn.Linear(3, 3, bias=False))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), SGD, lr=0.1)
    net(engine.ones(2, 3)).sum().backward()
    stale = net(engine.ones(2, 3).requires_grad_()).square().sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
    group.exchange(None)


@pytest.mark.mpi(ranks=[1, 2])
def test_refused(group) -> None:
    parameters = [nn.Parameter(engine.zeros(3))]
    with pytest.raises(TypeError, match="LBFGS does not update each element by itself"):
        ZeroRedundancyOptimizer(parameters, LBFGS)
    for option in ("parameters_as_bucket_view", "overlap_with_ddp"):
        with pytest.raises(NotImplementedError, match=option):
            ZeroRedundancyOptimizer(parameters, SGD, **{option: True})
    optimizer = ZeroRedundancyOptimizer(parameters, SGD, lr=0.1)
    with pytest.raises(RuntimeError, match=r"save state_dict\(\) instead"):
        copy.deepcopy(optimizer)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
