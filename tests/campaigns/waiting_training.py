"""Trains a model whose layers wait where others compute, so that ranks of several hosts do not share this machine's
cores: what is left are gradients, their sums, the links and the optimizer. What `forecast.py --waiting` starts.

    ddprun -n 2 tests/campaigns/waiting_training.py even --samples 64 --warmup 8 --steps 30

A JSON line of rank 0 with `step_ms`, the median of a step.
"""

import argparse
import json
import statistics
import time
from typing import Any

import ddp
import engine

BATCH = 64  # samples for which a model's seconds are
# Parameters of each layer, and seconds of all layers forward and backward.
MODELS = {
    "even": ([250_000] * 8, 0.06),
    "late": ([1_000, 20_000, 50_000, 100_000, 200_000, 400_000, 1_600_000], 0.05),
}


class Wait(engine.autograd.Function):
    """The input as it is after some seconds, and its gradient after twice as many."""

    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, seconds: float, gradient: Any) -> Any:
        ctx.seconds, ctx.gradient = seconds, gradient
        time.sleep(seconds)
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(2 * ctx.seconds)
        return gradient, ctx.gradient, None, None


class Layer(engine.nn.Module):
    def __init__(self, size: int, seconds: float) -> None:
        super().__init__()
        self.weight = engine.nn.Parameter(engine.zeros(size))
        self.seconds, self.gradient = seconds, engine.ones(size)

    def forward(self, input: Any) -> Any:
        return Wait.apply(input, self.weight, self.seconds, self.gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--samples", type=int, default=BATCH)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    sizes, seconds = MODELS[given.model]
    each = seconds * given.samples / BATCH / len(sizes) / 3  # forward; backward takes twice as long
    ddp.init_process_group()
    net = ddp.DistributedDataParallel(engine.nn.Sequential(*[Layer(size, each) for size in sizes]))
    optimizer = engine.optim.AdamW(net.parameters(), lr=1e-3)
    input, times = engine.ones(1, requires_grad=True), []
    for _ in range(given.warmup + given.steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        net(input).sum().backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    if ddp.get_rank() == 0:
        print(json.dumps({"model": given.model, "step_ms": 1e3 * statistics.median(times[given.warmup :])}), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
