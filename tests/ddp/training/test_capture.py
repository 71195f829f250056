"""`engine.compile` around a data-parallel step: gradients are reduced as in eager steps, bit for bit."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel
from engine import optim

Step = Callable[..., Any]


def build(seed: int, **options: Any) -> tuple[DistributedDataParallel, Any]:
    engine.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.Tanh()]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(8, 3)), bucket_cap_mb=0.001, **options)
    return model, optim.AdamW(model.parameters(), lr=1e-2)


def batch(number: int) -> tuple[engine.Tensor, engine.Tensor]:
    generator = engine.Generator().manual_seed(100 * number + ddp.get_rank())
    return engine.randn(5, 1, 4, 4, generator=generator), engine.randint(0, 3, (5,), generator=generator)


def ordinary(model: DistributedDataParallel, optimizer: Any) -> Step:
    def step(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return step


def accumulating(model: DistributedDataParallel, optimizer: Any) -> Step:
    """One backward under no_sync, one that is reduced, a clipped norm and a mean over the ranks."""

    def step(inputs: engine.Tensor, targets: engine.Tensor) -> tuple[engine.Tensor, engine.Tensor]:
        optimizer.zero_grad()
        with model.no_sync():
            F.cross_entropy(model(inputs * 0.5), targets).backward()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        ddp.all_reduce(mean)
        return norm, mean

    return step


def same(first: engine.Tensor, second: engine.Tensor) -> bool:
    equal = np.array_equal(first.numpy(force=True), second.numpy(force=True))
    return equal and first.stride() == second.stride()


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("as_view", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("make", [ordinary, accumulating])
def test_equal_to_eager(group: ddp.ProcessGroup, make: Callable[..., Step], as_view: bool) -> None:
    """Losses, gradients with their strides, parameters, batch norm statistics."""
    model, optimizer = build(1, gradient_as_bucket_view=as_view)
    other, other_optimizer = build(1, gradient_as_bucket_view=as_view)
    step, compiled = make(model, optimizer), engine.compile(make(other, other_optimizer))
    for number in range(8):
        expected, got = step(*batch(number)), compiled(*batch(number))
        for a, b in zip(expected, got, strict=True) if isinstance(expected, tuple) else [(expected, got)]:
            assert same(a, b), number
        assert all(map(same, model.state_dict().values(), other.state_dict().values())), number
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert same(a.grad, b.grad), number
    assert any(entry.programs for entry in compiled._entries.values())


@pytest.mark.mpi(ranks=[2])
def test_no_sync_around_the_call(group: ddp.ProcessGroup) -> None:
    """Whether gradients are reduced is decided where the step is called; each way has a recording."""

    def make(seed: int) -> tuple[DistributedDataParallel, Step]:
        model, _ = build(seed, broadcast_buffers=False)
        model.eval()

        def step(inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        return model, step

    (model, step), (other, plain) = make(1), make(1)
    compiled = engine.compile(plain)
    for number in range(16):
        for each, call in ((model, step), (other, compiled)):
            with each.no_sync() if number % 2 == 0 else nullcontext():
                call(*batch(number))
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert same(a.grad, b.grad), number
            if number % 2:
                a.grad = b.grad = None
    assert sum(len(entry.programs) for entry in compiled._entries.values()) == 2


@pytest.mark.mpi(ranks=[2])
def test_unused_parameters(group: ddp.ProcessGroup) -> None:
    """find_unused_parameters asks which leaves a backward reaches; a replay answers the same."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: engine.Tensor) -> engine.Tensor:
            return self.used(x)

    models = []
    for _ in range(2):
        engine.manual_seed(3)
        models.append(DistributedDataParallel(Halves(), find_unused_parameters=True))
    steps = [ordinary(model, optim.SGD(model.parameters(), lr=0.1)) for model in models]
    steps[1] = engine.compile(steps[1])
    for number in range(6):
        x = engine.randn(5, 4, generator=engine.Generator().manual_seed(number + 10 * ddp.get_rank()))
        losses = [step(x, engine.tensor([0, 1, 2, 0, 1])) for step in steps]
        assert same(*losses)
        assert all(map(same, models[0].state_dict().values(), models[1].state_dict().values()))
        assert models[1].module.unused.weight.grad is None


@pytest.mark.mpi(ranks=[2])
def test_collectives_that_cannot_be_replayed_are_refused(group: ddp.ProcessGroup) -> None:
    """What gives a handle or exchanges objects runs in every step, which is then an eager one."""

    def step(x: engine.Tensor) -> engine.Tensor:
        total = x.clone()
        work = ddp.all_reduce(total, async_op=True)
        assert work is not None
        work.wait()
        return total

    compiled = engine.compile(step)
    with pytest.warns(engine.CaptureWarning, match="returns a Python object, "):
        totals = [compiled(engine.ones(3) * number) for number in range(4)]
    assert [total.tolist() for total in totals] == [[2.0 * number] * 3 for number in range(4)]
    objects: list[list[Any]] = []

    def exchange(x: engine.Tensor) -> engine.Tensor:
        found: list[Any] = [None, None]
        ddp.all_gather_object(found, ddp.get_rank())
        objects.append(found)
        return x * 2

    compiled = engine.compile(exchange)
    with pytest.warns(engine.CaptureWarning, match="which a replay would not do again"):
        assert len([compiled(engine.ones(3)) for number in range(4)]) == 4
    assert objects == [[0, 1]] * 4
