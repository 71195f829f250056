"""Time one training step of four models, data-parallel over the ranks that are there: one JSON line a model.

    python examples/benchmark.py                     # one rank, all four
    ddprun -n 2 examples/benchmark.py gpt tiny       # two ranks, two of them
    ddprun -n 2 -m examples.benchmark                # the same as a module, from the repository's root

Shapes, steps and optimizer are those of the PyTorch script this is compared with; each rank has its own batch of
the size below. Start one thread a rank (`ddprun` does) to compare. Fields: step_ms is the median over the 30 steps
after 10 of warm-up, spread_ms their interquartile range, samples_s counts all ranks, params_M is in millions, and
peak_rss_MB is rank 0's peak memory *since it started*: name one model on the command line for that model's own.
"""

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from ddp import DistributedDataParallel
from engine.optim import AdamW

WARMUP, STEPS = 10, 30

Workload = tuple[nn.Module, engine.Tensor, engine.Tensor]  # model, inputs, class of each row of the model's output


class Block(nn.Module):
    """Pre-norm transformer block: x (B, T, C) -> (B, T, C)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: engine.Tensor) -> engine.Tensor:
        batch, time_steps, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time_steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).reshape(batch, time_steps, width))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Four blocks of width 128 on 128 tokens: tokens (B, T) -> logits (B * T, 256). The head is not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, 128), nn.Embedding(128, 128)
        self.blocks = nn.Sequential(*[Block(128, heads=4) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 256)

    def forward(self, tokens: engine.Tensor) -> engine.Tensor:
        x = self.token(tokens) + self.position(engine.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


def mlp(generator: engine.Generator) -> Workload:
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, engine.randn(128, 784, generator=generator), engine.randint(0, 10, (128,), generator=generator)


def cnn(generator: engine.Generator) -> Workload:
    convolutions = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    classifier = [nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)]
    model = nn.Sequential(*convolutions, *classifier)
    return model, engine.randn(64, 1, 28, 28, generator=generator), engine.randint(0, 10, (64,), generator=generator)


def gpt(generator: engine.Generator) -> Workload:
    tokens = engine.randint(0, 256, (8, 129), generator=generator)
    return GPT(), tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def tiny(generator: engine.Generator) -> Workload:
    hidden = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(*hidden, nn.Linear(16, 10))
    return model, engine.randn(8, 16, generator=generator), engine.randint(0, 10, (8,), generator=generator)


WORKLOADS: dict[str, Callable[[engine.Generator], Workload]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "tiny": tiny}


def step_times(net: nn.Module, inputs: engine.Tensor, targets: engine.Tensor) -> list[float]:
    """Seconds of each training step after the warm-up."""
    optimizer = AdamW(net.parameters(), lr=1e-3, fused=True)
    times = []
    for _ in range(WARMUP + STEPS):
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return times[WARMUP:]


def main() -> None:
    names = sys.argv[1:] or list(WORKLOADS)
    for name in names:
        if name not in WORKLOADS:
            raise ValueError(f"unknown workload {name!r}: choose from {', '.join(WORKLOADS)}")
    ddp.init_process_group()
    rank, world = ddp.get_rank(), ddp.get_world_size()
    engine.manual_seed(0)
    for name in names:
        model, inputs, targets = WORKLOADS[name](engine.Generator().manual_seed(rank))
        # At one rank the wrapper would only cost, and the script this is compared with leaves it out too.
        net = DistributedDataParallel(model, gradient_as_bucket_view=True) if world > 1 else model
        times = step_times(net, inputs, targets)
        first_quartile, median, third_quartile = statistics.quantiles(times, n=4)
        if rank == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
            line = {
                "workload": name,
                "ranks": world,
                "step_ms": round(median * 1e3, 3),
                "spread_ms": round((third_quartile - first_quartile) * 1e3, 3),
                "samples_s": round(world * len(inputs) / median, 1),
                "params_M": round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 3),
                "peak_rss_MB": round(peak / (1e6 if sys.platform == "darwin" else 1e6 / 1024), 1),
            }
            print(json.dumps(line), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
