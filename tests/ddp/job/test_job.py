"""A job's bits do not depend on the number of ranks; `tests/ddp/job/test_matrix.py` has the whole table."""

import math
import random
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp.transport.counting import CountingTransport
from engine.optim import SGD
from tests.ddp.job.runs import MODELS, SHARDS, Run

QUICK = ("mlp", "lstm")


def alone() -> ddp.groups.group.ProcessGroup:
    """A group of this rank, which carries all shards. Collective: every rank makes one."""
    return [ddp.new_group([rank]) for rank in range(ddp.get_world_size())][ddp.get_rank()]


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize(
    "model", [*QUICK, *(pytest.param(one, marks=pytest.mark.full) for one in MODELS if one not in QUICK)]
)
def test_many_ranks_train_to_the_bits_of_one(group, model: str, accumulate: int) -> None:
    expected = Run(model, accumulate=accumulate, group=alone()).train(4)
    assert Run(model, bucket_bytes=1024, accumulate=accumulate).train(4) == expected


@pytest.mark.mpi(ranks=[2])
def test_augmentation_in_loader_workers_is_the_shards(group) -> None:
    expected = Run("cnn", group=alone()).train(3)
    assert Run("cnn", workers=2).train(3) == expected


@pytest.mark.mpi(ranks=[1, 3])
def test_a_job_goes_on_from_its_state_on_another_number_of_ranks(group) -> None:
    expected = Run("cnn", group=alone())
    expected.train(3)
    saved = [each.state_dict() for each in (expected.job, expected.net, expected.optimizer, expected.scheduler)]
    run = Run("cnn", shards=None)
    for each, state in zip((run.job, run.net, run.optimizer, run.scheduler), saved, strict=True):
        each.load_state_dict(state)
    assert (run.job.step, run.job.num_shards) == (3, SHARDS)
    run.losses = list(expected.losses)
    assert run.train(9) == expected.train(9)


@pytest.mark.mpi(ranks=[2])
def test_a_shard_of_weight_0_does_not_count_and_parameters_may_be_unused(group) -> None:
    def train(own_group: ddp.ProcessGroup | None) -> str:
        job = ddp.Job(shards=5, seed=1, process_group=own_group)
        model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)])
        net = ddp.DistributedDataParallel(Chosen(model), job=job, process_group=own_group)
        for step in range(3):
            for shard in job.shards():
                net.set_gradient_weight(0 if shard == 1 else 2 + shard)
                net(engine.randn(4, 3) * (float("nan") if shard == 1 else 1), (shard + step) % 2).sum().backward()
            assert model[2].weight.grad is None
            for parameter in model[:2].parameters():
                parameter.data -= 0.1 * parameter.grad
            job.step += 1
        return ddp.digest(net)

    assert train(None) == train(alone())


class Chosen(nn.Module):
    """One of several layers."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: engine.Tensor, which: int) -> engine.Tensor:
        return self.layers[which](x)


def linear(job: ddp.Job) -> tuple[nn.Module, ddp.DistributedDataParallel]:
    model = nn.Linear(2, 1)
    return model, ddp.DistributedDataParallel(model, job=job)


@pytest.mark.mpi(ranks=[1, 2])
def test_random_numbers_are_the_shards_and_afterwards_the_same_on_all(group) -> None:
    job = ddp.Job(shards=4, seed=5)

    def drawn() -> tuple[float, float, float]:
        return engine.rand(()).item(), np.random.rand(), random.random()

    for _ in range(2):
        own = {shard: drawn() for shard in job.shards()}
        after = drawn()
        job.step += 1
    everyones = group.exchange((own, after))
    numbers = [each for own, _ in everyones for each in own.values()]
    assert len(set(numbers)) == 4
    assert {after for _, after in everyones} == {after}
    again = ddp.Job(shards=4, seed=5)
    again.step = 1
    assert {shard: drawn() for shard in again.shards()} == own


@pytest.mark.mpi(ranks=[2])
def test_ranks_go_through_several_modules_in_the_order_in_which_they_were_wrapped(group) -> None:
    """Buffers of one size each: a rank that took them in an order of its own would send another's."""
    job = ddp.Job(shards=2, seed=0)
    engine.manual_seed(0)
    elsewhere = [bytearray(1000 * (1 + group.rank())) for _ in range(100 * group.rank())]  # other addresses on each
    nets = [ddp.DistributedDataParallel(nn.BatchNorm1d(1 + place), job=job) for place in range(8)]
    assert list(job._nets) == nets
    for _ in job.shards():
        for net in nets:
            net(engine.randn(4, net.module.num_features)).square().sum().backward()
    for net in nets:
        means = group.exchange(net.module.running_mean.tolist())
        assert means[0] == means[1]
    assert len(elsewhere) == 100 * group.rank()


@pytest.mark.mpi(ranks=[2])
def test_a_step_that_one_rank_leaves_is_an_error_on_the_others_and_can_be_run_again(group) -> None:
    runs = [Run("cnn", group=own) for own in (alone(), None)]
    expected = runs[0].train(3)
    run, failures = runs[1], []

    def body() -> None:
        if run.job.step == 1 and not failures and group.rank == 1:
            for _ in run.job.shards(run.loader):
                raise OSError("a bad sample")
        run.body()

    while run.job.step < 3:
        try:
            run.job.run(body)
        except (OSError, RuntimeError) as error:
            failures.append(str(error))
    assert run.digest() == expected
    assert failures == (["a bad sample"] if group.rank else [failures[0]])
    assert "a bad sample" in failures[0] or "an exception ended the backward of rank 1" in failures[0]


@pytest.mark.mpi(ranks=[1])
def test_each_shard_has_one_backward(group) -> None:
    job = ddp.Job(shards=2)
    model, net = linear(job)
    x = engine.ones(3, 2)
    with pytest.raises(RuntimeError, match="a shard had no backward outside of no_sync"):
        list(job.shards())
    for _ in job.shards():
        net(x).sum().backward()
        with pytest.raises(RuntimeError, match="each shard has one backward"):
            net(x).sum().backward()
        net(x)
        break
    with pytest.raises(RuntimeError, match="inside of `for"):
        net(x).sum().backward()
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in job.shards():
        net(x).sum().backward()
        with pytest.raises(RuntimeError, match="would use gradients of one shard only"):
            optimizer.step()
        break


@pytest.mark.mpi(ranks=[2])
def test_what_would_depend_on_the_ranks_is_refused_by_name(group) -> None:
    with pytest.raises(ValueError, match="there are 2 ranks and shards=1"):
        ddp.Job(shards=1)
    with pytest.raises(ValueError, match=r"rank 1 has shards, seed and threads \[4, 1, 1\], rank 0 has \[4, 0, 1\]"):
        ddp.Job(shards=4, seed=int(group.rank))
    job = ddp.Job(shards=4)
    with pytest.raises(ValueError, match="1 is a SyncBatchNorm, whose statistics are of all ranks"):
        ddp.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), ddp.SyncBatchNorm(2)), job=job)
    with pytest.raises(ValueError, match="leave out broadcast_buffers=False"):
        ddp.DistributedDataParallel(nn.Linear(2, 2), broadcast_buffers=False, job=job)
    with pytest.raises(ValueError, match="another process group than its job"):
        ddp.DistributedDataParallel(nn.Linear(2, 2), process_group=ddp.new_group([0, 1]), job=job)
    _, net = linear(job)
    with pytest.raises(ValueError, match="a hook knows ranks only"):
        net.register_comm_hook(None, ddp.hooks.fp16_compress_hook)
    with pytest.raises(ValueError, match="weights are whole numbers"):
        net.set_gradient_weight(0.5)
    with pytest.raises(ValueError, match="expected a number for each of the 2 shards here, got 1"):
        job.mean([1.0])


@pytest.mark.mpi(ranks=[1])
def test_another_machine_is_told_by_name_and_another_number_of_shards_refused(group) -> None:
    state = ddp.Job(shards=3).state_dict()
    assert set(state["fingerprint"]) >= {"CPU", "NumPy", "BLAS", "threads"}
    ddp.Job(shards=3).load_state_dict(state)
    with pytest.raises(ValueError, match=r"a job with shards=3, this one was made with shards=4"):
        ddp.Job(shards=4).load_state_dict(state)
    state["fingerprint"]["NumPy"] = "1.0"
    with pytest.warns(RuntimeWarning, match=r"may change the last bits of its numbers: NumPy 1\.0, now 2"):
        ddp.Job(shards=3).load_state_dict(state)


@pytest.mark.mpi(ranks=[1])
def test_accumulators_take_the_memory_that_is_stated(group) -> None:
    """Of the transport: gradients, and at most 2 log2(shards) times as much; with one shard nothing more."""
    before = group._transport
    try:
        for shards in (1, 2, 12):
            group._transport = None
            counting = MemoryOf(group.transport)
            group._transport = counting
            net = ddp.DistributedDataParallel(nn.Linear(100, 50), job=ddp.Job(shards=shards))
            gradients = sum(net.live_reducer().buckets.sizes())
            assert counting.slots * 4 * 5050 <= 2 * math.log2(shards) * gradients
            assert (counting.slots == 0) == (shards == 1)
    finally:
        group._transport = before


class MemoryOf(CountingTransport):
    """Counts accumulators, too."""

    slots = 0

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        buffer: Any = super().allocate(*args, **kwargs)
        targets = {target.ctypes.data for step, _ in buffer.shards._steps if step for target in step._targets}
        self.slots += len(targets)
        return buffer
