"""A compiled step with DistributedDataParallel on GPUs: sums over ranks are made between CUDA graphs."""

import warnings

import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from engine.capture import segments
from engine.optim import SGD, AdamW
from tests import cuda_device


@pytest.fixture
def start(cuda):
    begun = []

    def begin(name):
        from mpi4py import MPI

        ddp.init_process_group(transport=None if MPI.COMM_WORLD.size == 1 else name)
        begun.append(True)

    yield begin
    if begun:
        ddp.destroy_process_group()


def train(where, compiled, make_optimizer, number=8, outside=None):
    """The losses, and the parameters at the end."""
    engine.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2)).to(where)
    model = DistributedDataParallel(network, bucket_cap_mb=0.0005)
    optimizer = make_optimizer(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = engine.compile(step, fullgraph=True) if compiled else step
    engine.manual_seed(100 + ddp.get_rank())
    losses = []
    for _ in range(number):
        losses.append(run(engine.randn(5, 6).to(where), engine.randn(5, 2).to(where)).item())
        if outside:
            outside(optimizer)
    return losses, [parameter.tolist() for parameter in network.parameters()]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("transport", ["cuda_ipc", "staged"])
def test_a_compiled_step_is_the_eager_step(transport, cuda, start, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT", 600)  # bytes: several graphs in one backward
    start(transport)
    captured = train(cuda, True, lambda p: AdamW(p, lr=0.05))
    assert captured == train(cuda, False, lambda p: AdamW(p, lr=0.05))
    everyone: list = [None] * ddp.get_world_size()
    ddp.all_gather_object(everyone, captured[1])
    assert all(each == everyone[0] for each in everyone)


@pytest.mark.mpi(ranks=[2])
def test_options_that_change(cuda, start):
    def halve(optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5

    start("cuda_ipc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", engine.CaptureWarning)
        captured = train(cuda, True, lambda p: SGD(p, lr=0.1, momentum=0.9), 14, halve)
    assert captured == train(cuda, False, lambda p: SGD(p, lr=0.1, momentum=0.9), 14, halve)


@pytest.mark.mpi(ranks=[2])
def test_backward_is_replayed_and_not_walked(cuda, start):
    if not cuda_device.ours():
        pytest.skip("counts what only the CPU driver counts")
    start("cuda_ipc")
    network = nn.Linear(6, 2).to(cuda)
    model = DistributedDataParallel(network)
    optimizer = SGD(model.parameters(), lr=0.1)

    @engine.compile(fullgraph=True)
    def step(x):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    x = engine.ones(3, 6, device=cuda) * (1 + ddp.get_rank())
    for _ in range(4):
        step(x)
    with cuda_device.counters() as count:
        step(x)
    assert count.graph_launches >= 2
    assert not [name for name in count.names if "square" in name or "matmul" in name]
