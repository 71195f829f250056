"""A step on gradients that are not averaged raises, on every rank, and names the parameters."""

from typing import Any

import pytest

import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from engine.optim import LBFGS, SGD
from tests.ddp.models import Weights, gradients

RANKS = pytest.mark.mpi(ranks=[2, 3, 4])


def made(*names: str, **options: Any) -> tuple[DistributedDataParallel, SGD]:
    net = DistributedDataParallel(Weights(*names), **options)
    return net, SGD(net.parameters(), lr=1.0)


@RANKS
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
def test_local_gradients_are_refused_by_name(group, as_view) -> None:
    net, optimizer = made(*"abcdefg", gradient_as_bucket_view=as_view)
    with net.no_sync():
        net(a=12, c=12).backward()
    with pytest.raises(
        RuntimeError, match=r"not averaged over the ranks, of 'c', 'a': they were accumulated under no_"
    ):
        optimizer.step()
    with net.no_sync():
        net(**dict.fromkeys("abcdefg", 12)).backward()
    with pytest.raises(RuntimeError, match="of 'g', 'f', 'e', 'd', 'c' and 2 more: they"):
        optimizer.step()
    assert net.module.a.tolist() == [0.0] * 3


@RANKS
def test_accumulation_that_ends_in_a_synchronised_backward_is_stepped(group) -> None:
    net, optimizer = made("a", "b")
    for _ in range(2):
        optimizer.zero_grad()
        with net.no_sync():
            net(a=12, b=12).backward()
        net(a=12.0 * group.rank).backward()
        optimizer.step()
    average = sum(12.0 * rank for rank in range(group.size())) / group.size()
    assert net.module.a.tolist() == [-2 * (12 + average)] * 3
    assert net.module.b.tolist() == [-24.0] * 3


@RANKS
def test_a_step_inside_no_sync_is_meant(group) -> None:
    """Local SGD: replicas differ for a while; and the gradients that are dropped afterwards are no debt."""
    net, optimizer = made("a")
    with net.no_sync():
        net(a=12.0 * group.rank).backward()
        optimizer.step()
    assert net.module.a.tolist() == [-12.0 * group.rank] * 3
    with pytest.raises(RuntimeError, match="not averaged"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    net(a=12).backward()
    optimizer.step()


@RANKS
def test_optimizers_of_other_parameters_and_of_wrappers_that_are_gone(group) -> None:
    net, optimizer = made("a", "b")
    other = nn.Parameter(engine.ones(2))
    other.grad = engine.ones(2)
    with net.no_sync():
        net(a=12).backward()
    SGD([other, net.module.b], lr=1.0).step()
    assert other.tolist() == [0, 0]
    again = DistributedDataParallel(net.module)
    again(a=12, b=12).backward()
    optimizer.step()
    assert gradients(again) == {"a": 24, "b": 12}


@RANKS
def test_a_step_inside_backward(group) -> None:
    """H32: a hook that steps would step on this rank's own gradient."""
    net, _ = made("a")
    optimizer = SGD([net.module.a], lr=1.0)
    handle = net.module.a.register_post_accumulate_grad_hook(lambda parameter: optimizer.step())
    with pytest.raises(RuntimeError, match=r"inside backward would use gradients .* ddp.step_in_backward"):
        net(a=12).backward()
    handle.remove()


def backward_and_tell(net: DistributedDataParallel, loss: engine.Tensor) -> None:
    """A rank whose backward fails tells the others at once, not in its next forward."""
    try:
        loss.backward()
    except ArithmeticError:
        net.reducer.recover()
        raise


@pytest.mark.mpi(ranks=[2, 3])
def test_after_a_failed_backward_on_every_rank(group) -> None:
    net, optimizer = made("a", "b")

    def fail(gradient: engine.Tensor) -> None:
        if group.rank == 1:
            raise ArithmeticError("not today")

    handle = net.module.a.register_hook(fail)
    loss = net(a=12, b=12)
    with pytest.raises(ArithmeticError if group.rank == 1 else RuntimeError, match=r"not today|backward of rank 1"):
        backward_and_tell(net, loss)
    handle.remove()
    with pytest.raises(RuntimeError, match="an exception ended the last backward on some rank"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    net(a=12.0 * group.rank, b=12).backward()
    optimizer.step()
    assert net.module.b.tolist() == [-12.0] * 3


@RANKS
def test_a_closure_runs_backward_within_the_step(group) -> None:
    net = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = LBFGS(net.parameters(), max_iter=3)

    def closure() -> engine.Tensor:
        optimizer.zero_grad()
        loss = (net(engine.ones(1, 2) * (group.rank + 1)) - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
