"""Training over several ranks is training in one process: same losses at every step, same bits on every rank."""

import copy
from functools import partial

import pytest

import ddp
import engine
from ddp import DistributedDataParallel
from engine.optim import SGD, Adam, AdamW
from tests.ddp.models import TASKS, batch, build, loss_of

STEPS = 6
OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9),
    "adam": partial(Adam, lr=0.01),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
}


def mean_over_ranks(loss: engine.Tensor) -> float:
    total = loss.detach().double()
    ddp.all_reduce(total, ddp.ReduceOp.AVG)
    return total.item()


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
@pytest.mark.parametrize(
    "optimizer",
    [
        OPTIMIZERS["sgd"],
        *(pytest.param(OPTIMIZERS[name], marks=pytest.mark.full) for name in ("adam", "adamw")),
    ],
    ids=OPTIMIZERS.keys(),
)
@pytest.mark.parametrize(
    "dtype", [engine.float32, pytest.param(engine.float64, marks=pytest.mark.full)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
def test_losses_are_those_of_one_process(group, task, dtype, optimizer, as_view) -> None:
    """D1, D2, D3, D10, D34: over views and copies, many tiny buckets; at the end the same bits on every rank."""
    alone = build(task, dtype)
    # Ranks start from other weights: those of rank 0 count.
    net = DistributedDataParallel(
        copy.deepcopy(alone) if group.rank == 0 else build(task, dtype, seed=group.rank),
        bucket_cap_mb=0.0005,
        gradient_as_bucket_view=as_view,
    )
    steps = [optimizer(model.parameters()) for model in (alone, net)]
    for step in range(STEPS):
        inputs, targets = batch(task, dtype, step)
        share = slice(group.rank, None, group.size())
        losses = loss_of(alone, inputs, targets), loss_of(net, inputs[share], targets[share])
        for loss, optimizer_ in zip(losses, steps, strict=True):
            optimizer_.zero_grad()
            loss.backward()
            optimizer_.step()
        expected = losses[0].item()
        assert mean_over_ranks(losses[1]) == pytest.approx(expected, rel=1e-5 if dtype is engine.float32 else 1e-12)
    own = [parameter.detach().numpy().tobytes() for parameter in net.parameters()]
    assert all(other == own for other in group.exchange(own))
