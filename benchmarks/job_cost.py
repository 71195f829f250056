"""What a job of shards adds to a training step, beside the same micro-batches under the plain wrapper, in turns; and
what the comparison of the replicas (`on_drift`) adds to the plain wrapper.

    ddprun -n 2 benchmarks/job_cost.py mlp cnn gpt            # as many shards as ranks
    python benchmarks/job_cost.py mlp cnn gpt --shards 12     # all of them on one rank

One JSON line a workload, from rank 0: medians over the rounds, each of which runs all three. plain_ms accumulates a
rank's micro-batches under `no_sync`; job_ms has them as shards; blind_ms is plain_ms with on_drift="ignore". cost and
drift_cost are the medians of the rounds' quotients, less 1: of job_ms and plain_ms, of plain_ms and blind_ms.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import workloads
from workloads import F, library

import ddp

STEPS, WARMUP = 5, 2  # a round


def steps_of(name: str, shards: int) -> dict[str, Callable[[], object]]:
    """Collective: both kinds of steps, each on a model of its own."""
    job = ddp.Job(shards)
    model, inputs, targets = workloads.WORKLOADS[name](library.Generator().manual_seed(ddp.get_rank()))
    count = len(job.carried)

    def made(**options: Any) -> tuple[Any, Any]:
        net = ddp.DistributedDataParallel(copy.deepcopy(model), **options)
        return net, library.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def plain(net: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        for place in range(count):
            with nullcontext() if place == count - 1 else net.no_sync():
                F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()

    compared, blind = made(), made(on_drift="ignore")
    job_net, job_optimizer = made(job=job)

    def body() -> None:
        for _ in job.shards():
            F.cross_entropy(job_net(inputs), targets).backward()
        job_optimizer.step()

    return {"blind": lambda: plain(*blind), "plain": lambda: plain(*compared), "job": lambda: job.run(body)}


def measure(name: str, shards: int, rounds: int) -> dict[str, Any]:
    """Collective: the line of one workload."""
    kinds = steps_of(name, shards)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in sorted(kinds, reverse=bool(number % 2)):
            for _ in range(WARMUP):
                kinds[kind]()
            ddp.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                kinds[kind]()
            times[kind].append((time.perf_counter() - began) / STEPS * 1e3)
    quotients = [job / plain for job, plain in zip(times["job"], times["plain"], strict=True)]
    of_drift = [plain / blind for plain, blind in zip(times["plain"], times["blind"], strict=True)]
    return {
        "workload": name,
        "ranks": ddp.get_world_size(),
        "shards": shards,
        "plain_ms": round(statistics.median(times["plain"]), 3),
        "job_ms": round(statistics.median(times["job"]), 3),
        "blind_ms": round(statistics.median(times["blind"]), 3),
        "drift_cost": round(statistics.median(of_drift) - 1, 4),
        "cost": round(statistics.median(quotients) - 1, 4),
        "quartiles": [round(each - 1, 4) for each in statistics.quantiles(quotients, n=4)[::2]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=workloads.WORKLOADS)
    parser.add_argument("--shards", type=int, help="default: the number of ranks")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    ddp.init_process_group()
    for name in args.workloads:
        line = measure(name, args.shards or ddp.get_world_size(), args.rounds)
        if ddp.get_rank() == 0:
            print(json.dumps(line), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
