"""What DistributedDataParallel adds to a training step of one rank: in short turns in one job, so under one load.

    ddprun -n 2 benchmarks/ddp_cost.py mlp cnn

One JSON line a workload, medians over the turns of means over the ranks: plain_ms, a step of each rank without the
wrapper (all ranks busy, nobody waits for another), the mean of two models, one made before a wrapped one and one after
it, since one of two copies can take a twentieth longer; lock_step_ms, the second of these with a barrier after each
step, as the slowest rank of every step costs whoever trains together; ddp_ms, wrapped; and
in_backward_ms, wrapped with `ddp.step_in_backward`. cost and cost_in_backward are their shares above plain_ms,
beyond_lock_step that of ddp_ms above lock_step_ms, each the median over the turns of what it is within a turn, since
the machine of one turn is seldom that of the next.

What the ranks wait for each other is in all but plain_ms, and on a machine that others use, too, it is most of a cost.
So waited_ms is, of ddp_ms, the time in the transport's `wait` (in shared memory, on one host), and work the share of
what is left above plain_ms: hooks, headers, sums, and an optimizer on buckets.

A turn is five steps of each kind, one to fill the caches and four that are timed together, since in one of four the
wrapper looks at parameters (`ddp.gradients.drift`). All ranks begin these together.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import workloads
from training import MANY, training_step
from workloads import F, library

import ddp
from ddp import DistributedDataParallel, step_in_backward
from ddp.transport.shared import SharedTransport

TURNS, WARMUP = 60, 3
STEPS = 4  # timed, of a turn


def steps_of(name: str) -> dict[str, Callable[[], object]]:
    """Collective: the kinds of steps, those with a wrapper on models of their own."""
    from mpi4py import MPI  # which ddp has started

    library.manual_seed(0)
    model, inputs, targets = workloads.WORKLOADS[name](library.Generator().manual_seed(ddp.get_rank()))
    plain = training_step(copy.deepcopy(model))
    wrapped = training_step(DistributedDataParallel(copy.deepcopy(model)))
    another = training_step(copy.deepcopy(model))
    net = DistributedDataParallel(model)
    optimizer = library.optim.AdamW(net.parameters(), lr=1e-3)
    step_in_backward(optimizer, net)

    def in_backward() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(inputs), targets).backward()

    def lock_step() -> None:
        another(inputs, targets)
        MPI.COMM_WORLD.Barrier()

    return {
        "plain": lambda: plain(inputs, targets),
        "lock_step": lock_step,
        "ddp": lambda: wrapped(inputs, targets),
        "in_backward": in_backward,
        "another": lambda: another(inputs, targets),
    }


def note_waiting() -> list[float]:
    """Seconds of each wait for another rank, from now on."""
    waits: list[float] = []
    wait = SharedTransport.wait

    def noting(self: SharedTransport, buffer: Any) -> None:
        began = time.perf_counter()
        wait(self, buffer)
        waits.append(time.perf_counter() - began)

    SharedTransport.wait = noting  # type: ignore[method-assign]
    return waits


def measure(name: str, turns: int, waits: list[float]) -> dict[str, Any]:
    """Collective: the line of one workload. waits: of `note_waiting`."""
    kinds = steps_of(name)
    times: dict[str, list[float]] = {kind: [] for kind in (*kinds, "waited")}
    for turn in range(-min(WARMUP, turns), turns):
        for kind, step in kinds.items():
            step()
            ddp.barrier()
            waits.clear()
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            if turn >= 0:
                times[kind].append((time.perf_counter() - began) / STEPS * 1e3)
                if kind == "ddp":
                    times["waited"].append(sum(waits) / STEPS * 1e3)
    ranks: list[Any] = [None] * ddp.get_world_size()
    ddp.all_gather_object(ranks, times)
    mean = {
        kind: [statistics.mean(turn) for turn in zip(*(rank[kind] for rank in ranks), strict=True)] for kind in times
    }
    mean["plain"] = [(one + other) / 2 for one, other in zip(mean["plain"], mean.pop("another"), strict=True)]
    busy = [every - part for every, part in zip(mean["ddp"], mean["waited"], strict=True)]
    return {
        "workload": name,
        "ranks": len(ranks),
        "plain_ms": [round(statistics.median(rank["plain"] + rank["another"]), 4) for rank in ranks],
        **{f"{kind}_ms": round(statistics.median(turns), 4) for kind, turns in mean.items() if kind != "plain"},
        "cost": _above(mean["ddp"], mean["plain"]),
        "cost_in_backward": _above(mean["in_backward"], mean["plain"]),
        "beyond_lock_step": _above(mean["ddp"], mean["lock_step"]),
        "work": _above(busy, mean["plain"]),
    }


def _above(times: list[float], others: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(times, others, strict=True)) - 1, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = ", ".join(workloads.WORKLOADS)
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"of {known}; default the first four")
    parser.add_argument("--turns", type=int, help=f"default {TURNS}, more where steps are short")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in workloads.WORKLOADS]:
        parser.error(f"unknown workload {unknown[0]!r}: choose from {known}")
    ddp.init_process_group()
    waits = note_waiting()
    for name in given.names or workloads.STATED:
        line = measure(name, given.turns or max(TURNS, MANY.get(name, 0)), waits)
        if ddp.get_rank() == 0:
            print(json.dumps(line), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
