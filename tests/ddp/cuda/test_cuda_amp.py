"""Mixed precision on GPUs over several ranks: low activations, float32 gradients, one verdict on overflow."""

from collections.abc import Iterator

import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel
from ddp.gradients.reference import average_gradients
from engine.optim import SGD


@pytest.fixture
def group(cuda: engine.device) -> Iterator[ddp.ProcessGroup]:
    ddp.init_process_group(transport="staged")
    yield ddp.groups.group.resolve(None)
    ddp.destroy_process_group()


def network(cuda: engine.device) -> nn.Sequential:
    engine.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(cuda)


def loss_of(net: nn.Module, group: ddp.ProcessGroup, cuda: engine.device) -> engine.Tensor:
    x = engine.full((2, 4), 0.25 * (group.rank + 1), device=cuda)
    with engine.autocast("cuda", dtype=engine.float16):
        output = net(x)
        assert output.dtype is engine.float16
        return F.cross_entropy(output, engine.tensor([0, 2], device=cuda))


@pytest.mark.mpi(ranks=[2])
def test_gradients_are_averaged_in_float32(group, cuda) -> None:
    plain, net = network(cuda), DistributedDataParallel(network(cuda))
    for each in (plain, net):
        loss_of(each, group, cuda).backward()
    average_gradients(plain.parameters(), group)
    for expected, found in zip(plain.parameters(), net.parameters(), strict=True):
        assert found.grad.dtype is engine.float32
        assert (found.grad - expected.grad).abs().max().item() < 1e-6


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("averaged", [True, False])
def test_an_overflow_on_one_rank_is_one_on_all(group, cuda, averaged) -> None:
    net = network(cuda)
    net = DistributedDataParallel(net) if averaged else net
    optimizer, scaler = SGD(net.parameters(), lr=0.1, momentum=0.9), engine.GradScaler("cuda", init_scale=8.0)
    if not averaged:
        ddp.agree_on_overflow(optimizer, group)
    before = [parameter.tolist() for parameter in net.parameters()]
    for bad_rank, expected in ((1, 4), (None, 4)):
        optimizer.zero_grad()
        loss = loss_of(net, group, cuda) * (float("inf") if group.rank == bad_rank else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == expected
        assert ([parameter.tolist() for parameter in net.parameters()] == before) == (bad_rank is not None)
