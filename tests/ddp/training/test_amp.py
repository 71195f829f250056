"""Mixed precision on several ranks: one verdict on overflow, gradients in float32."""

import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel, PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from ddp.gradients.reference import average_gradients
from ddp.training.local_sgd import PeriodicModelAverager
from engine.optim import SGD, Adam

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])


def everywhere(group: ddp.ProcessGroup, value: object) -> list[object]:
    found: list[object] = [None] * group.size()
    ddp.all_gather_object(found, value)
    return found


def scaled(net: nn.Module, group: ddp.ProcessGroup, bad_rank: int | None, scaler: engine.GradScaler) -> engine.Tensor:
    factor = float("inf") if group.rank == bad_rank else 1.0
    return scaler.scale(net(engine.ones(2, 3)).sum() * factor)


def seeded(*shape: int) -> nn.Linear:
    engine.manual_seed(0)
    return nn.Linear(*shape)


@RANKS
@pytest.mark.parametrize("bad", [None, -1])
def test_an_overflow_on_one_rank_is_one_on_all(group, bad) -> None:
    """The averaged gradients carry the verdict."""
    bad_rank = None if bad is None else bad % group.size()
    net = DistributedDataParallel(seeded(3, 2))
    optimizer, scaler = SGD(net.parameters(), lr=0.1, momentum=0.9), engine.GradScaler("cpu", init_scale=8.0)
    before = net.module.weight.tolist()
    for _ in range(2):
        optimizer.zero_grad()
        scaled(net, group, bad_rank, scaler).backward()
        scaler.step(optimizer)
        scaler.update()
    found = everywhere(group, (scaler.get_scale(), net.module.weight.tolist(), len(optimizer.state)))
    assert found == [found[0]] * group.size()
    assert scaler.get_scale() == (8 if bad is None else 2)
    assert (net.module.weight.tolist() == before) == (bad is not None)


@pytest.mark.mpi(ranks=[2, 4])
@pytest.mark.parametrize("unscale_first", [True, False])
def test_ranks_with_gradients_of_their_own_agree_when_asked(group, unscale_first) -> None:
    layer = seeded(3, 2)
    optimizer, scaler = SGD(layer.parameters(), lr=0.1), engine.GradScaler("cpu", init_scale=8.0)
    ddp.agree_on_overflow(optimizer)
    scaled(layer, group, 1, scaler).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert (
        everywhere(group, (scaler.get_scale(), layer.weight.tolist()))
        == [(4, seeded(3, 2).weight.tolist())] * group.size()
    )


@pytest.mark.mpi(ranks=[3])
def test_a_rank_without_gradients_has_a_say(group) -> None:
    layer = seeded(3, 2)
    optimizer, scaler = SGD(layer.parameters(), lr=0.1), engine.GradScaler("cpu", init_scale=8.0)
    ddp.agree_on_overflow(optimizer)
    loss = scaled(layer, group, 1, scaler)
    if group.rank:
        loss.backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4


@pytest.mark.mpi(ranks=[2])
def test_without_asking_ranks_decide_for_themselves(group) -> None:
    """What `agree_on_overflow` is for."""
    layer = seeded(3, 2)
    optimizer, scaler = SGD(layer.parameters(), lr=0.1), engine.GradScaler("cpu", init_scale=8.0)
    scaled(layer, group, 1, scaler).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == (4 if group.rank == 1 else 8)


@RANKS
def test_optimizers_whose_step_is_collective_agree_by_themselves(group) -> None:
    """Were it left to each rank, those that step would wait for the others for ever."""
    layer = seeded(3, 2)
    zero = ZeroRedundancyOptimizer(layer.parameters(), Adam, lr=0.1)
    local = seeded(3, 2)
    averaged = PostLocalSGDOptimizer(SGD(local.parameters(), lr=0.1), PeriodicModelAverager(period=2))
    for net, optimizer in ((layer, zero), (local, averaged)):
        scaler = engine.GradScaler("cpu", init_scale=8.0)
        for bad_rank, expected in ((group.size() - 1, 4), (None, 4)):
            optimizer.zero_grad()
            scaled(net, group, bad_rank, scaler).backward()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == expected
        found = everywhere(group, net.weight.tolist())
        assert found == [found[0]] * group.size()
        assert found[0] != seeded(3, 2).weight.tolist()


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("dtype", [engine.bfloat16, engine.float16])
@pytest.mark.parametrize("outside", [True, False], ids=["block around", "block inside"])
def test_autocast_under_ddp(group, dtype, outside) -> None:
    """H15, by autocast: activations in the low dtype, parameters and averaged gradients in float32."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            engine.manual_seed(0)
            self.conv, self.last = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            with engine.autocast("cpu", dtype, enabled=not outside or engine.is_autocast_enabled("cpu")):
                features = self.conv(x)
                assert features.dtype is dtype
                return self.last(F.relu(features).mean((2, 3)))

    plain, net = Net(), DistributedDataParallel(Net())
    engine.manual_seed(group.rank)
    x, y = engine.randn(4, 2, 5, 5), engine.randint(0, 3, (4,))
    for each in (plain, net):
        with engine.autocast("cpu", dtype, enabled=outside):
            output = each(x)
            assert output.dtype is dtype
            loss = F.cross_entropy(output, y)
        loss.backward()
    average_gradients(plain.parameters(), group)
    for expected, found in zip(plain.parameters(), net.parameters(), strict=True):
        assert found.grad.dtype is engine.float32
        assert found.grad.tolist() == expected.grad.tolist()
