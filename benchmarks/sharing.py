"""What two threads can gain in a training step, in processor time, which a busy machine changes little: a line each.

    OMP_NUM_THREADS=2 python benchmarks/sharing.py batch_norm recurrent

one_ms is a step on one thread, chain_ms the longest chain of one on two: what only the calling thread does, and of
everything shared the longer half, each thread taking the next part when it is done with one. gain is their ratio,
before what handing over costs. spun_ms is what other threads, those of the BLAS, spend beside it.
"""

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import training
import workloads

import engine
from engine.sharing import threads

WARMUP, STEPS = 4, 12


def longer_half(seconds: list[float]) -> float:
    """The time of two threads that take the parts in turn."""
    ends = [0.0, 0.0]
    for each in seconds:
        ends[ends.index(min(ends))] += each
    return max(ends)


def measure(name: str) -> dict[str, Any]:
    engine.manual_seed(0)
    model, inputs, targets = workloads.WORKLOADS[name](engine.Generator().manual_seed(0))
    step = partial(training.training_step(model), inputs, targets)

    engine.set_num_threads(1)
    alone = []
    for _ in range(WARMUP + STEPS):
        began = time.thread_time()
        step()
        alone.append(time.thread_time() - began)

    engine.set_num_threads(2)
    share, shared = threads.share, []

    def timed_share(function: Callable[[Any], Any], parts: Sequence[Any]) -> None:
        took: list[tuple[bool, float]] = []

        def timed(part: Any) -> None:
            began = time.thread_time()
            function(part)
            took.append((threading.current_thread() is threading.main_thread(), time.thread_time() - began))

        share(timed, parts)
        shared.append(took)

    threads.share = timed_share
    chains, spun = [], []
    for _ in range(WARMUP + STEPS):
        shared.clear()
        process, began = time.process_time(), time.thread_time()
        step()
        main, process = time.thread_time() - began, time.process_time() - process
        here, there = (
            sum(each for took in shared for on_main, each in took if on_main is which) for which in (True, False)
        )
        chains.append(main - here + sum(longer_half([each for _, each in took]) for took in shared))
        spun.append(process - main - there)
    threads.share = share

    one, chain = min(alone[WARMUP:]), min(chains[WARMUP:])
    return {
        "workload": name,
        "one_ms": round(one * 1e3, 2),
        "chain_ms": round(chain * 1e3, 2),
        "gain": round(one / chain, 2),
        "spun_ms": round(statistics.median(spun[WARMUP:]) * 1e3, 2),
        "shared": len(shared),
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or workloads.STATED:
        print(json.dumps(measure(name)), flush=True)
