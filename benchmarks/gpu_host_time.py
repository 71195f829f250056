"""What a call on a GPU costs the host, beside what CuPy takes for the same or for one launch, as JSON lines.

    python benchmarks/gpu_host_time.py --json
    python benchmarks/gpu_host_time.py --only "x + y" softmax

Each line {"op", "ours_us", "cupy_us", "ratio"} has CPU time of this process, all threads, microseconds a call: medians
of rounds in which the two sides take turns. `x + y`, `x @ w` and `linear` stand beside CuPy's own call (cupy.add,
cupy.matmul); the others beside one launch as CuPy makes it: cupy.negative, a kernel and the memory of its result. CuPy
allocates from its own pool meanwhile, without what engine counts. `step` is a training step of 8 x (Linear 128 + ReLU)
with AdamW. The gradients of `adamw of 48` are the same tensors in each step, as those in DDP's buckets are. Arrays are
small, so that on a GPU, too, the device is done before the host; it is waited for between the rounds.

On a machine without a GPU it says so and ends with exit code 2.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

ROUNDS, CALLS = 31, 60

Call = Callable[[], object]


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--only", nargs="+", metavar="OP", help="some of them")
    parser.add_argument("--toy", action="store_true", help="a call of each: whether it runs, not how fast")
    given = parser.parse_args()
    import engine.memory.backend as backend

    try:
        cupy = backend.require_cupy()
    except RuntimeError as error:
        print(f"benchmarks/gpu_host_time.py: {error}", file=sys.stderr)
        return 2
    for name, (ours, theirs) in pairs(cupy).items():
        if given.only and name not in given.only:
            continue
        line = compare(cupy, ours, theirs, *((1, 1) if given.toy else (ROUNDS, CALLS)))
        if given.json:
            print(json.dumps({"op": name, **line}), flush=True)
        else:
            print(f"{name:24}{line['ours_us']:10.2f}{line['cupy_us']:10.2f}{line['ratio']:8.2f}", flush=True)
    return 0


def compare(cupy: Any, ours: Call, theirs: Call, rounds: int, calls: int) -> dict[str, float]:
    """Microseconds a call of both, and their ratio."""
    wait, own_pool = cupy.cuda.get_current_stream().synchronize, cupy.get_default_memory_pool().malloc
    sides = ((ours, nullcontext, []), (theirs, partial(cupy.cuda.using_allocator, own_pool), []))
    for call, *_ in sides:
        for _ in range(5):  # what is planned or compiled is so by the third
            call()
    wait()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for call, allocator, found in sides:
                with allocator():
                    found.append(seconds(call, calls) * 1e6)
                wait()
    finally:
        gc.enable()
    mine, other = (statistics.median(found) for *_, found in sides)
    return {"ours_us": round(mine, 2), "cupy_us": round(other, 2), "ratio": round(mine / other, 3)}


def seconds(call: Call, calls: int) -> float:
    """CPU time of all threads, a call."""
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls


def pairs(cupy: Any) -> dict[str, tuple[Call, Call]]:
    """Our call and CuPy's, by the name of the operator."""
    import engine
    import engine.nn.functional as F

    def randn(*shape: int) -> Any:
        return engine.randn(*shape, device="cuda")

    x, y, w = randn(64, 128), randn(64, 128), randn(128, 128)
    weight, bias = randn(128, 128), randn(128)
    heads = [randn(2, 4, 16, 32) for _ in range(3)]
    image, filters = randn(2, 32, 8, 8), randn(32, 32, 3, 3)
    last = [each.to(memory_format=engine.channels_last) for each in (image, filters)]
    parameters = [engine.nn.Parameter(randn(32, 32)) for _ in range(48)]
    for each in parameters:
        each.grad = randn(32, 32)
    optimizer = engine.optim.AdamW(parameters, lr=1e-3)
    a, b, c = (cupy.empty(each.shape, "f") for each in (x, y, w))
    launch = partial(cupy.negative, a)
    return {
        "x + y": (lambda: x + y, partial(cupy.add, a, b)),
        "x @ w": (lambda: x @ w, partial(cupy.matmul, a, c)),
        "linear": (lambda: F.linear(x, weight, bias), partial(cupy.matmul, a, c)),
        "linear without bias": (lambda: F.linear(x, weight), partial(cupy.matmul, a, c)),
        "relu": (lambda: F.relu(x), launch),
        "gelu": (lambda: F.gelu(x), launch),
        "softmax": (lambda: F.softmax(x, -1), launch),
        "layer_norm": (lambda: F.layer_norm(x, (128,), bias, bias), launch),
        "attention": (lambda: F.scaled_dot_product_attention(*heads), launch),
        "conv2d": (lambda: F.conv2d(image, filters, padding=1), launch),
        "conv2d channels_last": (lambda: F.conv2d(*last, padding=1), launch),
        "adamw of 48": (optimizer.step, launch),
        "step": (training_step(engine, randn), launch),
    }


def training_step(engine: Any, randn: Any) -> Call:
    """A step of 8 x (Linear 128 + ReLU)."""
    layers = [part for _ in range(8) for part in (engine.nn.Linear(128, 128), engine.nn.ReLU())]
    model = engine.nn.Sequential(*layers).to("cuda")
    optimizer = engine.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = randn(64, 128)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
