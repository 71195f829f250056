"""What DistributedDataParallel can do beside averaging gradients: a function each, on any number of ranks.

    ddprun -n 2 examples/data_parallel.py

Each function trains the same small model for a few steps in another way; rank 0 prints the loss at its end. A whole
training script is examples/digits.py.
"""

from collections.abc import Callable

import ddp
import engine
import engine.nn.functional as F
from ddp import DistributedDataParallel, GradBucket, SyncBatchNorm, hooks
from engine import nn
from engine.data import DataLoader, TensorDataset
from engine.optim import SGD, AdamW

STEPS = 20


def model() -> nn.Module:
    """Alike on every rank: the seed is."""
    engine.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def batch(step: int) -> tuple[engine.Tensor, engine.Tensor]:
    """Another one on every rank."""
    generator = engine.Generator().manual_seed(step * ddp.get_world_size() + ddp.get_rank())
    x = engine.randn(16, 4, generator=generator)
    return x, x.sum(1, keepdim=True)


def loss_of(net: nn.Module, step: int) -> engine.Tensor:
    x, y = batch(step)
    return F.mse_loss(net(x), y)


def train(net: nn.Module, optimizer: SGD | AdamW | ddp.ZeroRedundancyOptimizer | ddp.PostLocalSGDOptimizer) -> float:
    """The loop that most examples below share."""
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(net, step)
        loss.backward()
        optimizer.step()
    return loss.item()


def plain() -> float:
    """Gradients are averaged while backward goes on."""
    net = DistributedDataParallel(model())
    return train(net, AdamW(net.parameters(), lr=0.01))


def accumulation() -> float:
    """Under no_sync gradients only add up on their rank; the next backward outside averages the sums."""
    net = DistributedDataParallel(model())
    optimizer = SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        with net.no_sync():
            (loss_of(net, 2 * step) / 2).backward()
        loss = loss_of(net, 2 * step + 1) / 2
        loss.backward()
        optimizer.step()
    return 2 * loss.item()


def compressed() -> float:
    """A hook says how a bucket of gradients is averaged: here in half precision on the wire."""
    net = DistributedDataParallel(model())
    net.register_comm_hook(None, hooks.bf16_compress_hook)
    return train(net, AdamW(net.parameters(), lr=0.01))


def own_hook() -> float:
    """A hook of one's own: clip what this rank found, then average."""

    def clipped(state: None, bucket: GradBucket) -> ddp.Future[engine.Tensor]:
        bucket.buffer().clamp_(-1, 1)
        return bucket.average()

    net = DistributedDataParallel(model())
    net.register_comm_hook(None, clipped)
    return train(net, AdamW(net.parameters(), lr=0.01))


def state_divided() -> float:
    """ZeRO: each rank keeps the optimizer's state of a part of the parameters, and updates those."""
    net = DistributedDataParallel(model())
    optimizer = ddp.ZeroRedundancyOptimizer(net.parameters(), AdamW, lr=0.01)
    loss = train(net, optimizer)
    optimizer.consolidate_state_dict()  # on all ranks; then state_dict() on rank 0 is the whole
    if ddp.get_rank() == 0:
        assert len(optimizer.state_dict()["state"]) == 4
    return loss


def step_within_backward() -> float:
    """A bucket's parameters are updated when its average is there, while later buckets are under way."""
    net = DistributedDataParallel(model())
    optimizer = AdamW(net.parameters(), lr=0.01)
    overlapped = ddp.step_in_backward(optimizer, net)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(net, step)
        loss.backward()
    overlapped.remove()
    return loss.item()


def now_and_then() -> float:
    """Local SGD: ranks train alone, and every fourth step average their parameters instead of gradients."""
    net = model()
    averager = ddp.PeriodicModelAverager(period=4, warmup_steps=4)
    return train(net, ddp.PostLocalSGDOptimizer(SGD(net.parameters(), lr=0.05), averager))


def uneven_data() -> float:
    """Ranks with fewer batches stand in with zero weight until the last one is through."""
    net = DistributedDataParallel(model())
    optimizer = AdamW(net.parameters(), lr=0.01)
    mine = [batch(step) for step in range(STEPS + 3 * ddp.get_rank())]
    for x, y in ddp.uneven(mine, net):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def joined() -> float:
    """The same with PyTorch's context."""
    net = DistributedDataParallel(model())
    optimizer = SGD(net.parameters(), lr=0.1)
    with net.join():
        for step in range(STEPS + 3 * ddp.get_rank()):
            optimizer.zero_grad()
            loss = loss_of(net, step)
            loss.backward()
            optimizer.step()
    return loss.item()


def statistics_of_all() -> float:
    """Batch norm over the batches of all ranks together."""
    plain_model = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))
    net = DistributedDataParallel(SyncBatchNorm.convert_sync_batchnorm(plain_model))
    return train(net, AdamW(net.parameters(), lr=0.01))


def every_sample_once() -> float:
    """An epoch that goes on after a checkpoint, replicas compared, an evaluation that counts no sample twice."""
    net = DistributedDataParallel(model())
    optimizer = AdamW(net.parameters(), lr=0.01)
    x = engine.randn(509, 4, generator=engine.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = ddp.DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        if epoch == 0:
            sampler.skip(120)  # seen by all ranks together before the interruption
        for inputs, targets in DataLoader(data, 16, sampler=sampler):
            optimizer.zero_grad()
            F.mse_loss(net(inputs), targets).backward()
            optimizer.step()
        ddp.verify_replicas(net)
    totals = engine.zeros(2)
    for inputs, targets in DataLoader(data, 64, sampler=ddp.UnrepeatedDistributedSampler(data, shuffle=False)):
        with engine.no_grad():
            totals += engine.tensor([F.mse_loss(net.module(inputs), targets, reduction="sum").item(), len(inputs)])
    ddp.all_reduce(totals)
    assert totals[1].item() == len(data)
    return (totals[0] / totals[1]).item()


def watched() -> float:
    """Where the time of a step goes on every rank, and which rank the others wait for."""
    net = DistributedDataParallel(model())
    optimizer = AdamW(net.parameters(), lr=0.01)
    with ddp.timeline(net) as steps:
        loss = train(net, optimizer)
    if ddp.get_rank() == 0:
        print(steps.summary())  # and steps.save("steps.json") is a file for ui.perfetto.dev
    return loss


EXAMPLES: tuple[Callable[[], float], ...] = (
    plain,
    accumulation,
    compressed,
    own_hook,
    state_divided,
    step_within_backward,
    now_and_then,
    uneven_data,
    joined,
    statistics_of_all,
    every_sample_once,
    watched,
)


def main() -> None:
    ddp.init_process_group()
    for example in EXAMPLES:
        loss = example()
        if ddp.get_rank() == 0:
            print(f"{example.__name__:20} {loss:8.4f}   {example.__doc__}", flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
