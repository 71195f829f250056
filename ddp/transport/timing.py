"""What a sum takes, measured: by `ddp.forecast`, and for the size of buckets where a transport sends messages."""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddp.transport.base import Transport

if TYPE_CHECKING:
    from mpi4py import MPI

SMALLEST = 1 << 14
"""Bytes of a sum of next to nothing: more than travels with a header (`ddp.transport.mpi`)."""

LARGEST = 1 << 20
_SIZES = (SMALLEST, 1 << 16, 1 << 18, LARGEST)
_ROUNDS = 3
_ENOUGH = 0.05  # seconds of a sum, after which no larger one is tried


class SumTimes(NamedTuple):
    """Seconds of a sum of next to nothing, and of each byte more."""

    seconds: float
    byte: float


def time_sums(transport: Transport, comm: "MPI.Intracomm") -> SumTimes:
    """Collective: of a transport on which nothing is under way; the same numbers on all ranks. Some ten milliseconds,
    over a slow link a quarter of a second.
    """
    found: list[tuple[int, float]] = []
    for nbytes in _SIZES:
        found.append((nbytes, sum_seconds(transport, comm, nbytes, _ROUNDS, 1)))
        if found[-1][1] > _ENOUGH:
            break
    (few, least), (many, most) = found[0], found[-1]
    byte = (most - least) / (many - few) if many > few else least / few
    return SumTimes(least, max(byte, 0.0))


def sum_seconds(transport: Transport, comm: "MPI.Intracomm", nbytes: int, rounds: int, warm_up: int) -> float:
    """Collective: of a sum of so many bytes, the slowest rank's in the median of the rounds."""
    buffer = transport.allocate(max(1, nbytes // 4), np.float32, header=8)

    def run() -> None:
        transport.start(buffer)
        transport.wait(buffer)

    return median_seconds(comm, run, rounds, warm_up)


def median_seconds(comm: "MPI.Intracomm", run: Callable[[], object], rounds: int, warm_up: int) -> float:
    """Collective: what `run` takes, the slowest rank's time in the median of the rounds."""
    times = []
    for _ in range(warm_up + rounds):
        comm.Barrier()
        began = time.perf_counter()
        run()
        times.append(max(comm.allgather(time.perf_counter() - began)))
    return statistics.median(times[warm_up:])
