"""Whole models in one CUDA graph: a convolutional network and a transformer, in float32 and under autocast."""

import pytest

import engine
import engine.nn as nn
from engine.nn.utils import clip_grad_norm_
from engine.optim import AdamW
from tests import cuda_device

F = nn.functional
VOCABULARY, LENGTH, WIDTH, HEADS = 11, 8, 16, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = (
            each.view(batch, length, HEADS, -1).transpose(1, 2) for each in self.qkv(self.before(x)).split(WIDTH, 2)
        )
        y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.dropout(self.out(y))
        return x + self.mlp(self.between(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        places = self.places(engine.arange(x.shape[1], device=x.device))
        return self.head(self.blocks(self.tokens(x) + places)).flatten(0, 1)


def convolutional():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )


def batch(kind, where):
    if kind == "transformer":
        x, y = (engine.randint(0, VOCABULARY, (2, LENGTH)) for _ in range(2))
    else:
        x, y = engine.randn(4, 1, 8, 8), engine.randint(0, 3, (4,))
    return x.to(where), y.flatten().to(where)


def train(kind, where, compiled, autocast):
    """Losses, parameters, and what the last step asked of the device."""
    engine.manual_seed(0)
    model = (Transformer() if kind == "transformer" else convolutional()).to(where)
    optimizer = AdamW(model.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        with engine.autocast("cuda", dtype=engine.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    run = engine.compile(step, fullgraph=True) if compiled else step
    engine.manual_seed(1)
    losses = []
    for _ in range(6):
        x, y = batch(kind, where)
        with cuda_device.counters() as count:
            loss = run(x, y)
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()], count


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_the_captured_step_is_the_eager_step_in_one_graph(kind, autocast, cuda):
    *eager, _ = train(kind, cuda, False, autocast)
    *captured, count = train(kind, cuda, True, autocast)
    assert captured == eager
    if cuda_device.ours():
        assert (count.graph_launches, count.synchronizations, count.pageable, count.raw_allocations) == (1, 0, 0, 0)
