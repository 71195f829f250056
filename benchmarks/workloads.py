"""The models that are timed, one text for both libraries: BENCHMARK_LIBRARY names the one to import, engine or torch.

The first four are what figures are stated for; the others differ from them in size and kind, so that nothing can be
tuned to four shapes. A workload is a model, its inputs and the class of each row of its output; the loss is the cross
entropy. float32 throughout; every rank draws a batch of its own.
"""

import importlib
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

NAME = os.environ.get("BENCHMARK_LIBRARY", "engine")

_began = time.perf_counter()
library: Any = importlib.import_module(NAME)
IMPORT_SECONDS = time.perf_counter() - _began

nn: Any = library.nn
F: Any = nn.functional

Workload = tuple[Any, Any, Any]


class Block(nn.Module):  # type: ignore[misc]
    """Pre-norm transformer block: x (B, T, C) -> (B, T, C)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):  # type: ignore[misc]
    """Four blocks: tokens (B, T) of 256 kinds -> logits (B * T, 256). The head is not tied."""

    def __init__(self, tokens: int, blocks: int = 4, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.position(library.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions with batch norm around a shortcut: x (N, C, H, W) -> the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Any) -> Any:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Recurrent(nn.Module):  # type: ignore[misc]
    """Two LSTM layers of width 256 over x (B, T, 64), classified by the last output: logits (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 256, num_layers=2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def layers(*widths: int, activation: Callable[[], Any] = nn.ReLU) -> Any:
    """Linear layers from width to width, an activation between them."""
    parts: list[Any] = []
    for inputs, outputs in itertools.pairwise(widths):
        parts += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*parts[:-1])


def classified(model: Any, shape: tuple[int, ...], classes: int, generator: Any) -> Workload:
    """`model` with normal inputs of `shape` and classes for its rows."""
    inputs = library.randn(*shape, generator=generator)
    return model, inputs, library.randint(0, classes, shape[:1], generator=generator)


def mlp(generator: Any) -> Workload:
    return classified(layers(784, 1024, 1024, 10), (128, 784), 10, generator)


def cnn(generator: Any) -> Workload:
    parts = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)]
    return classified(nn.Sequential(*parts), (64, 1, 28, 28), 10, generator)


def gpt(generator: Any, batch: int = 8, tokens: int = 128, width: int = 128) -> Workload:
    drawn = library.randint(0, 256, (batch, tokens + 1), generator=generator)
    return GPT(tokens, width=width), drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()


def tiny(generator: Any) -> Workload:
    return classified(layers(*[16] * 9, 10, activation=nn.Tanh), (8, 16), 10, generator)


def traffic(generator: Any) -> Workload:
    """10.6 M parameters and 32 samples a rank: communication and the optimizer weigh as much as the products."""
    return classified(layers(*[1024] * 11, 100), (32, 1024), 100, generator)


def wide(generator: Any) -> Workload:
    return classified(layers(784, 4096, 4096, 10), (64, 784), 10, generator)


def deep(generator: Any) -> Workload:
    return classified(layers(*[128] * 100, 10), (32, 128), 10, generator)


def batch_norm(generator: Any) -> Workload:
    parts = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), Residual(32)]
    parts += [nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), Residual(64)]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return classified(nn.Sequential(*parts), (32, 3, 32, 32), 10, generator)


def recurrent(generator: Any) -> Workload:
    return classified(Recurrent(), (32, 32, 64), 10, generator)


def long(generator: Any) -> Workload:
    return gpt(generator, batch=1, tokens=1024)


def gpt_256(generator: Any) -> Workload:
    return gpt(generator, width=256)


STATED: dict[str, Callable[[Any], Workload]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "tiny": tiny}
WORKLOADS = STATED | {
    "traffic": traffic,
    "wide": wide,
    "deep": deep,
    "batch_norm": batch_norm,
    "recurrent": recurrent,
    "long": long,
    "gpt_256": gpt_256,
}
# One optimizer step and nothing else: number of floats in each parameter.
OPTIMIZER = {"adamw_16.8M": (1 << 24,), "adamw_1.8M_in_18": (100_000,) * 18}
