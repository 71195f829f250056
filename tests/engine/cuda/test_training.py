"""A few steps of training on the device give the CPU's losses, and wait for the device only where the loss is read."""

import pytest

import engine
import engine.nn as nn
from benchmarks import workloads
from engine.backends import cudnn
from engine.optim import SGD, AdamW
from tests import cuda_device

STEPS = 3


def mlp() -> workloads.Workload:
    return workloads.classified(workloads.layers(12, 16, 16, 10), (6, 12), 10, generator())


def tiny() -> workloads.Workload:
    return workloads.classified(workloads.layers(*[8] * 4, 5, activation=nn.Tanh), (4, 8), 5, generator())


def cnn() -> workloads.Workload:
    parts = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), workloads.Residual(4)]
    parts += [nn.Flatten(), nn.Linear(4 * 4 * 4, 10)]
    return workloads.classified(nn.Sequential(*parts), (3, 1, 8, 8), 10, generator())


def gpt() -> workloads.Workload:
    drawn = engine.randint(0, 256, (2, 9), generator=generator())
    model = workloads.GPT(8)
    model.blocks = model.blocks[:1]
    return model, drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()


def lstm() -> workloads.Workload:
    model = nn.Sequential(nn.LSTM(5, 6, batch_first=True), Last(), nn.Linear(6, 4))
    return workloads.classified(model, (3, 4, 5), 4, generator())


class Last(nn.Module):
    def forward(self, outputs: tuple[engine.Tensor, object]) -> engine.Tensor:
        return outputs[0][:, -1]


def generator() -> engine.Generator:
    return engine.Generator().manual_seed(5)


def losses(workload: workloads.Workload, optimizer: engine.optim.Optimizer) -> list[engine.Tensor]:
    model, inputs, classes = workload
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found


@pytest.mark.parametrize("optimizer", [AdamW, SGD])
@pytest.mark.parametrize("build", [mlp, tiny, cnn, gpt, lstm], ids=lambda build: build.__name__)
def test_losses_are_those_of_the_cpu(
    build: object, optimizer: type, cuda: engine.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "allow_tf32", False)
    made = []
    for _ in range(2):
        engine.manual_seed(3)
        made.append(build())  # type: ignore[operator]
    (model, *_), (model_there, inputs, classes) = made
    model_there.to(cuda)
    there = (model_there, inputs.to(cuda), classes.to(cuda))
    expected = losses(made[0], optimizer(model.parameters(), lr=0.05))
    with cuda:
        optimizer_there = optimizer(model_there.parameters(), lr=0.05)
        found = losses(there, optimizer_there)
        with cuda_device.counters() as count:
            losses(there, optimizer_there)
    assert [loss.item() for loss in found] == pytest.approx([loss.item() for loss in expected], rel=2e-4)
    if cuda_device.ours():
        assert count.synchronizations == 0
        assert count.pageable == 0
    for one, other in zip(model_there.parameters(), model.parameters(), strict=True):
        assert one.stride() == other.stride()
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.stride() == other.grad.stride()
