"""Train workloads on the ranks that are there, with engine or with PyTorch: one JSON line for each, from rank 0.

    ddprun -n 2 benchmarks/training.py gpt tiny
    BENCHMARK_LIBRARY=torch OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/training.py gpt tiny

`examples/benchmark.py` starts both in turn. Fields: step_ms is the median over the steps after the warm-up and
quartiles_ms the quartiles around it, both of rank 0; samples_s counts all ranks; params_M is in millions; peak_MB is
the highest peak of resident memory of a rank *since it started*, so name one workload a process; first_step_at is the
machine's monotonic clock at the end of the first step, import_s the time of importing the library. On several ranks of
engine, hidden is the share of the last step's communication that was over before backward was, by the Reducer's timers.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import workloads
from workloads import F, library

if workloads.NAME == "torch":
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel
else:
    import ddp as distributed
    from ddp import DistributedDataParallel

WARMUP, STEPS = 10, 30
# Steps of a workload whose 30 would be over in no time.
MANY = {"tiny": 1000, "deep": 100, "adamw_1.8M_in_18": 200}


def enter_world(transport: str | None = None) -> tuple[int, int]:
    """Collective: this rank and the number of ranks. PyTorch has no world of its own without a launcher."""
    if workloads.NAME == "torch" and "WORLD_SIZE" not in os.environ:
        return 0, 1
    distributed.init_process_group("gloo", **({} if transport is None else {"transport": transport}))
    return distributed.get_rank(), distributed.get_world_size()


def leave_world() -> None:
    """Ends what `enter_world` began."""
    if not distributed.is_initialized():
        return
    if workloads.NAME == "torch":  # some interpreters that ended by themselves were aborted
        distributed.barrier()
        sys.stdout.flush()
        os._exit(0)
    distributed.destroy_process_group()


def training_step(net: Any) -> Callable[[Any, Any], object]:
    """One step of a training loop as a user writes it, on inputs and targets."""
    optimizer = library.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()

    return step


def optimizer_step(sizes: tuple[int, ...]) -> Callable[[], object]:
    """AdamW's step alone, on parameters of these sizes."""
    parameters = [library.nn.Parameter(library.randn(size)) for size in sizes]
    for parameter in parameters:
        parameter.grad = library.randn(*parameter.shape)
    return library.optim.AdamW(parameters, lr=1e-3, fused=True).step


def step_times(step: Callable[[], object], warmup: int, steps: int) -> tuple[list[float], float]:
    """Seconds of each step after the warm-up, and the clock after the first step of all."""
    times, first = [], 0.0
    for _ in range(warmup + steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
        first = first or time.monotonic()
    return times[warmup:], first


def peak_megabytes() -> float:
    """Highest resident memory of this process. Not getrusage's: that begins with the peak of the process's parent."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) / 1024


def measure(name: str, rank: int, world: int, given: argparse.Namespace) -> dict[str, Any]:
    """Collective: the line of one workload."""
    library.manual_seed(0)
    step: Callable[[], object]
    samples, params = 0, workloads.OPTIMIZER.get(name, ())
    if params:
        step = optimizer_step(params)
    else:
        model, inputs, targets = workloads.WORKLOADS[name](library.Generator().manual_seed(rank))
        inputs, targets = inputs[: given.samples], targets[: given.samples]
        samples, params = len(inputs), tuple(parameter.numel() for parameter in model.parameters())
        # At one rank the wrapper would only cost.
        cap = {"bucket_cap_mb": given.bucket_cap_mb, "gradient_as_bucket_view": True}
        net = DistributedDataParallel(model, **cap) if world > 1 else model
        if given.capture and workloads.NAME == "torch":  # as its users do: the wrapped model, its backward with it
            step = training_step(library.compile(net))
        else:
            step = library.compile(training_step(net)) if given.capture else training_step(net)
        step = partial(step, inputs, targets)
    times, first = step_times(step, given.warmup, given.steps or MANY.get(name, STEPS))
    peaks: list[Any] = [peak_megabytes()] * world
    if world > 1:
        distributed.all_gather_object(peaks, peaks[0])
    hidden = {}
    if world > 1 and samples and workloads.NAME != "torch":
        hidden["hidden"] = round(net.reducer.times.overlap()["hidden"], 3)
    lower, median, upper = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return {
        "library": workloads.NAME,
        "workload": name,
        "ranks": world,
        "captured": given.capture,
        "threads": int(os.environ.get("OMP_NUM_THREADS") or 0) or None,
        "step_ms": round(median * 1e3, 4),
        "quartiles_ms": [round(lower * 1e3, 4), round(upper * 1e3, 4)],
        "samples_s": round(world * samples / median, 1),
        "params_M": round(sum(params) / 1e6, 3),
        "peak_MB": round(max(peaks), 1),
        "import_s": round(workloads.IMPORT_SECONDS, 3),
        "first_step_at": first,
        **hidden,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*workloads.WORKLOADS, *workloads.OPTIMIZER]
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(known)}; default the first four")
    parser.add_argument("--warmup", type=int, default=WARMUP, help="steps before those that count")
    parser.add_argument("--steps", type=int, help=f"steps that count (default {STEPS}, more where they are short)")
    parser.add_argument("--samples", type=int, help="of a rank's batch, the first (of those with a target each)")
    parser.add_argument("--bucket-cap-mb", type=float, help="as of DistributedDataParallel")
    parser.add_argument("--transport", help="as of init_process_group; engine only")
    parser.add_argument("--capture", action="store_true", help="engine.compile of the step, torch.compile of the model")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"unknown workload {unknown[0]!r}: choose from {', '.join(known)}")
    rank, world = enter_world(given.transport)
    for name in given.names or workloads.STATED:
        line = measure(name, rank, world, given)
        if rank == 0:
            print(json.dumps(line), flush=True)
    leave_world()


if __name__ == "__main__":
    main()
