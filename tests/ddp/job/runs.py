"""Small jobs of all kinds, and what is left of each: one digest, which must not depend on who ran it."""

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp.groups.process_group import ProcessGroup
from engine.data import DataLoader, Dataset
from engine.optim import SGD, Adam, AdamW
from engine.optim.lr_scheduler import CosineAnnealingLR

SHARDS = 12
EACH = 2  # samples of a shard in one step


class GPT(nn.Module):
    """Tokens (B, 6) -> logits (B * 6, 11); embedding and head are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 8)
        self.position = nn.Embedding(6, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: engine.Tensor) -> engine.Tensor:
        x = self.token(tokens) + self.position(engine.arange(6))
        q, k, v = self.qkv(self.norm(x)).view(*tokens.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.dropout(self.out(y.transpose(1, 2).reshape(x.shape)))).flatten(0, 1)


class LSTM(nn.Module):
    """Sequences (B, 5, 3) -> logits (B, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 6, batch_first=True)
        self.head = nn.Linear(6, 5)

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 5))


def cnn() -> nn.Module:
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2)]
    rest = [nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5)]
    return nn.Sequential(*first, *rest).to(memory_format=engine.channels_last)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (7,)),
    "cnn": (cnn, (3, 8, 8)),
    "gpt": (GPT, (6,)),
    "lstm": (LSTM, (5, 3)),
}
PRECISIONS = ("float32", "float64", "autocast")


class Samples(Dataset[Any]):
    """As many as three epochs of 20 steps need, changed at random while they are fetched."""

    def __init__(self, model: str, dtype: engine.dtype) -> None:
        self._shape, self._tokens, self._dtype = MODELS[model][1], model == "gpt", dtype

    def __len__(self) -> int:
        return 7 * SHARDS * EACH + 5

    def __getitem__(self, index: int) -> tuple[engine.Tensor, engine.Tensor]:
        own = np.random.default_rng(index)
        if self._tokens:
            tokens = own.integers(0, 11, 7)
            tokens[0] = np.random.randint(11)
            return engine.from_numpy(tokens[:-1].copy()), engine.from_numpy(tokens[1:].copy())
        noise = engine.randn(self._shape, dtype=self._dtype)
        sample = engine.from_numpy(own.standard_normal(self._shape)).to(self._dtype) + 0.1 * noise
        return sample, engine.tensor(int(own.integers(5)))


def optimizer_of(model: str, net: nn.Module) -> Any:
    if model == "mlp":
        return SGD(net.parameters(), lr=0.1, momentum=0.9)
    if model == "gpt":
        matrices = [parameter for parameter in net.parameters() if parameter.ndim >= 2]
        vectors = [parameter for parameter in net.parameters() if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        return AdamW(groups, lr=0.01)
    return Adam(net.parameters(), lr=0.01)


class Run:
    """One job: made, and then trained."""

    def __init__(
        self,
        model: str,
        precision: str = "float32",
        bucket_bytes: int = 1 << 20,
        accumulate: int = 1,
        workers: int = 0,
        group: ProcessGroup | None = None,
        shards: int | None = SHARDS,
    ) -> None:
        self.job = ddp.Job(shards=shards, seed=3, process_group=group)
        dtype = engine.float64 if precision == "float64" else engine.float32
        self.net = ddp.DistributedDataParallel(
            MODELS[model][0]().to(dtype=dtype), job=self.job, process_group=group, bucket_cap_mb=bucket_bytes / 2**20
        )
        self.optimizer = optimizer_of(model, self.net)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=20)
        data = Samples(model, dtype)
        sampler = ddp.ShardSampler(data, SHARDS * EACH, self.job)
        self.loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
        self.model, self.accumulate = model, accumulate
        self.autocast = engine.autocast("cpu", engine.bfloat16) if precision == "autocast" else nullcontext()
        self.losses: list[float] = []

    def body(self) -> None:
        """Of a step."""
        losses = []
        for inputs, targets in self.job.shards(self.loader):
            parts = list(zip(inputs.chunk(self.accumulate), targets.chunk(self.accumulate), strict=True))
            total = 0.0
            for place, (x, y) in enumerate(parts):
                with self.net.no_sync() if place < len(parts) - 1 else nullcontext():
                    with self.autocast:
                        loss = F.cross_entropy(self.net(x), y.flatten()) / len(parts)
                    loss.backward()
                total += loss.item()
            losses.append(total)
        if self.model == "gpt":
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(self.job.mean(losses))

    def train(self, steps: int) -> str:
        """Up to so many steps; then `digest`."""
        while self.job.step < steps:
            self.job.run(self.body)
        return self.digest()

    def digest(self) -> str:
        """Of everything that must be the same."""
        state = ddp.digest(self.net, self.optimizer, self.scheduler)
        return hashlib.sha256(f"{state} {self.losses}".encode()).hexdigest()
