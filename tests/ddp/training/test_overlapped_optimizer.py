"""Optimizer in backward: buckets are stepped as they are summed, with the numbers of a step afterwards."""

import copy
import time
from functools import partial
from typing import Any

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel, step_in_backward
from ddp.hooks import fp16_compress_hook
from ddp.transport import TRANSPORTS
from engine.autograd import graph
from engine.optim import LBFGS, SGD, Adam, AdamW, Optimizer, lr_scheduler
from tests.ddp.models import ONE_QUICKLY, TASKS, Weights, batch, bits, build, gradients, loss_of

RANKS = pytest.mark.mpi(ranks=[1, 2, 3, 4])
OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1, momentum=0.9),
    "adam": partial(Adam, lr=0.01),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
}


def backward(group: Any, net: nn.Module, task: str, step: int) -> None:
    inputs, targets = batch(TASKS[task], engine.float32, step)
    share = slice(group.rank, None, group.size())
    loss_of(net, inputs[share], targets[share]).backward()


@RANKS
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("task", ONE_QUICKLY)
def test_the_numbers_of_a_step_afterwards(group, task, name) -> None:
    """H13, H14: several groups with options of their own, a scheduler, accumulation, a hook, views and copies."""
    model = build(TASKS[task], engine.float32)
    ends = []
    for overlapped in (False, True):
        net = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.0005, gradient_as_bucket_view=task != "mlp")
        if name == "adam":
            net.register_comm_hook(None, fp16_compress_hook)
        parameters = list(net.parameters())
        optimizer = OPTIMIZERS[name]([{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.03}])
        scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)
        if overlapped:
            step_in_backward(optimizer, net)
        for step in range(3):
            optimizer.zero_grad(set_to_none=step != 1)
            if step == 2:
                with net.no_sync():
                    backward(group, net, task, 7)
            backward(group, net, task, step)
            if not overlapped:
                optimizer.step()
            scheduler.step()
        ends.append((bits(net), optimizer.state_dict()["state"]))
    assert ends[0][0] == ends[1][0]
    lists = [
        {number: {name: value.tolist() for name, value in values.items()} for number, values in state.items()}
        for _, state in ends
    ]
    assert lists[0] == lists[1]
    assert all(other == ends[1][0] for other in group.exchange(ends[1][0]))


@RANKS
@pytest.mark.parametrize("transport", ["own", "mpi"])
def test_a_bucket_is_stepped_while_others_are_under_way(group, transport, monkeypatch) -> None:
    """Before backward has ended, where its sum is there."""
    if transport != "own" and group.size() > 1:
        monkeypatch.setattr(group, "_transport", TRANSPORTS[transport](group.comm))
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=1e-5)
    step_in_backward(SGD(net.parameters(), lr=1.0), net)
    reducer, stepped = net.reducer, net.reducer.on_summed
    names = {id(parameter): name for name, parameter in net.module.named_parameters()}
    order: list[tuple[str, bool]] = []  # and whether gradients were still to come
    ended: list[bool] = []

    def note(parameters: list[engine.Tensor]) -> None:
        (name,) = [names[id(parameter)] for parameter in parameters]
        order.append((name, not ended))
        stepped(parameters)

    def notice_the_end(gradient: engine.Tensor) -> None:
        graph.queue_callback(lambda: ended.append(True))  # runs before that of the Reducer, which is queued later

    def wait_for_the_first_bucket(gradient: engine.Tensor) -> None:
        end = time.monotonic() + 30
        while (
            not order
            and not reducer.buckets.transport.is_done(reducer.buckets.all[0].buffer)
            and time.monotonic() < end
        ):
            reducer.buckets.transport.poll()

    reducer.on_summed = note
    net.module.c.register_hook(notice_the_end)  # its gradient comes first
    net.module.a.register_hook(wait_for_the_first_bucket)  # and this one last
    for _ in range(2):
        order.clear()
        ended.clear()
        net.zero_grad()
        net(a=12.0 * group.rank, b=12, c=24).backward()
        assert [name for name, _ in order] == ["c", "b", "a"]
        assert order[0][1]
        assert ended
    average = sum(12.0 * rank for rank in range(group.size())) / group.size()
    assert [p.tolist()[0] for p in net.parameters()] == [-2 * average, -24.0, -48.0]


@pytest.mark.mpi(ranks=[2, 3])
def test_a_gradient_that_comes_after_the_step_is_an_error(group) -> None:
    """As without an optimizer: a re-entrant checkpoint that uses a parameter again."""
    net = DistributedDataParallel(Weights("a", "b"), bucket_cap_mb=1e-5)
    step_in_backward(SGD(net.parameters(), lr=1.0), net)

    def again(gradient: engine.Tensor) -> None:
        with engine.enable_grad():
            (net.module.b * 12).sum().backward()

    handle = net.module.a.register_hook(again)
    with pytest.raises(RuntimeError, match="another gradient of parameter 'b' came after its bucket was on its way"):
        net(a=12, b=12).backward()
    handle.remove()


@pytest.mark.mpi(ranks=[2, 3])
def test_a_subset_unused_parameters_and_the_end(group) -> None:
    """H13: only some parameters are stepped; those nobody used stay; after `remove` it is as before."""
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=1e-5)
    handle = net._register_fused_optim(SGD, lr=1.0, optim_params=[net.module.a, net.module.b])
    net(a=12.0 * group.rank, c=12).backward()
    average = sum(12.0 * rank for rank in range(group.size())) / group.size()
    assert [p.tolist()[0] for p in net.parameters()] == [-average, 0, 0]
    assert gradients(net) == {"a": average, "b": None, "c": 12}
    handle.remove()
    net.zero_grad()
    net(b=12).backward()
    assert net.module.b.tolist() == [0.0] * 3


@pytest.mark.mpi(ranks=[1, 2])
def test_misuse(group) -> None:
    net = DistributedDataParallel(Weights("a", "b"))
    optimizer = SGD(net.parameters(), lr=1.0)
    step_in_backward(optimizer, net)
    net(a=12, b=12).backward()
    with pytest.raises(RuntimeError, match="backward has stepped this SGD already; leave"):
        optimizer.step()
    with pytest.raises(RuntimeError, match="steps an optimizer already"):
        step_in_backward(SGD(net.parameters(), lr=1.0), net)
    other = DistributedDataParallel(Weights("a"))
    with pytest.raises(TypeError, match="LBFGS does not update each element by itself"):
        step_in_backward(LBFGS(other.parameters()), other)
    stranger = nn.Parameter(engine.zeros(1))
    with pytest.raises(ValueError, match="1 parameters of the optimizer are not averaged by the wrapped module"):
        step_in_backward(SGD([*other.parameters(), stranger], lr=1.0), other)


@pytest.mark.mpi(ranks=[2, 3])
def test_after_a_failed_backward_replicas_are_still_alike(group) -> None:
    """Buckets that all ranks had sent are stepped on all of them, also where the exception was."""
    net = DistributedDataParallel(Weights(*"abc"), bucket_cap_mb=1e-5)
    optimizer: Optimizer = SGD(net.parameters(), lr=1.0)
    step_in_backward(optimizer, net)

    def fail(gradient: engine.Tensor) -> None:
        if group.rank == 1:
            raise ArithmeticError("not today")

    handle = net.module.b.register_hook(fail)
    loss = net(a=12, b=12, c=12.0 * group.rank)
    with pytest.raises(ArithmeticError if group.rank == 1 else RuntimeError):
        loss.backward()
    handle.remove()
    optimizer.zero_grad()
    net(a=12, b=12, c=12).backward()
    assert len({str(found) for found in group.exchange([p.tolist() for p in net.parameters()])}) == 1
