"""Small models with what matters to data-parallel training: several layouts, a tied weight, many shapes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F

BATCH = 12  # samples of a global batch: equal shares for 1, 2, 3 and 4 ranks


class Task(NamedTuple):
    """A model and its global batches."""

    build: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator], np.ndarray]
    """One global batch; the first axis has BATCH entries. Floating arrays take the dtype of the model."""
    targets: Callable[[np.random.Generator], np.ndarray]
    memory_format: engine.memory_format = engine.contiguous_format


class TiedLanguageModel(nn.Module):
    """Embedding, one attention block, and a head that is the embedding again: tokens (B, T) -> logits (B, T, 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 8)
        self.position = nn.Parameter(0.1 * engine.randn(6, 8))
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: engine.Tensor) -> engine.Tensor:
        x = self.token(tokens) + self.position
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        attended = F.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        return self.head(x + self.out(attended.transpose(1, 2).reshape(batch, length, width)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))


def cnn() -> nn.Module:
    """The batch norm is to be used in eval mode, where it has parameters but no statistics of the batch."""
    features = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU(), nn.Conv2d(8, 4, 1)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(4 * 4 * 4, 5)).eval()


TASKS = {
    "mlp": Task(mlp, lambda rng: rng.standard_normal((BATCH, 7)), lambda rng: rng.integers(0, 5, BATCH)),
    "cnn": Task(
        cnn,
        lambda rng: rng.standard_normal((BATCH, 3, 8, 8)),
        lambda rng: rng.integers(0, 5, BATCH),
        engine.channels_last,
    ),
    "tied": Task(
        TiedLanguageModel, lambda rng: rng.integers(0, 11, (BATCH, 6)), lambda rng: rng.integers(0, 11, (BATCH, 6))
    ),
}
ONE_QUICKLY = [name if name == "cnn" else pytest.param(name, marks=pytest.mark.full) for name in TASKS]
"""Names of tasks for `parametrize`: the quick tier runs one of them."""


def build(task: Task, dtype: engine.dtype, seed: int = 0) -> nn.Module:
    """The task's model, the same for the same seed."""
    engine.manual_seed(seed)
    return task.build().to(dtype=dtype).to(memory_format=task.memory_format)


def batch(task: Task, dtype: engine.dtype, step: int) -> tuple[engine.Tensor, engine.Tensor]:
    """Inputs and targets of one global step."""
    rng = np.random.default_rng([7, step])
    inputs = engine.from_numpy(task.inputs(rng))
    if inputs.is_floating_point():
        inputs = inputs.to(dtype)
        if inputs.dim() == 4:
            inputs = inputs.to(memory_format=task.memory_format)
    return inputs, engine.from_numpy(task.targets(rng))


def loss_of(net: nn.Module, inputs: engine.Tensor, targets: engine.Tensor) -> engine.Tensor:
    """Mean cross-entropy."""
    outputs = net(inputs)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


class Weights(nn.Module):
    """Named parameters of three elements; `net(a=2, b=3)` uses a and b. The gradient of each is its factor."""

    def __init__(self, *names: str, dtype: engine.dtype = engine.float32) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(engine.zeros(3, dtype=dtype)))

    def forward(self, **factors: float) -> engine.Tensor:
        return sum((getattr(self, name) * factor).sum() for name, factor in factors.items())


def gradients(net: nn.Module) -> dict[str, float | None]:
    """The gradient of each parameter, whose elements must be equal; None where there is none."""
    found: dict[str, float | None] = {}
    for name, parameter in net.named_parameters():
        values = None if parameter.grad is None else set(parameter.grad.flatten().tolist())
        assert values is None or len(values) == 1
        found[name.rpartition(".")[2]] = None if values is None else values.pop()
    return found


def mean(group: ddp.ProcessGroup, value: Callable[[int], float]) -> float:
    """The mean of `value(rank)` over the ranks."""
    return sum(value(rank) for rank in range(group.size())) / group.size()


def bits(net: nn.Module) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in net.parameters()]
