"""Collectives of ddp on tensors beside the MPI library's own on arrays: `ddprun -n 2 benchmarks/collectives.py`.

Prints a JSON line each: the slowest rank's time, in the median, in turns with MPI's; those of ddp compare the ranks'
calls. all_gather gives a list of tensors, where MPI gives one array.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import ddp
import engine

BYTES_IN_ALL = 1 << 26  # for each figure
MOST_ROUNDS = 60
SIZES = [64, 1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26]


def cases(comm: MPI.Intracomm, count: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """By name: ddp's call and MPI's, on float32."""
    tensor, array = engine.ones(count), np.ones(count, np.float32)
    tensors, arrays = [engine.ones(count) for _ in range(comm.size)], np.ones((comm.size, count), np.float32)
    return {
        "all_reduce": (lambda: ddp.all_reduce(tensor), lambda: comm.Allreduce(MPI.IN_PLACE, array)),
        "broadcast": (lambda: ddp.broadcast(tensor, 0), lambda: comm.Bcast(array, 0)),
        "all_gather": (lambda: ddp.all_gather(tensors, tensor), lambda: comm.Allgather(array, arrays)),
    }


def slowest(comm: MPI.Intracomm, call: Callable[[], object]) -> float:
    """Collective: seconds that the slowest rank is in the call."""
    comm.Barrier()
    began = time.perf_counter()
    call()
    return comm.allreduce(time.perf_counter() - began, MPI.MAX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, nargs="+", default=SIZES)
    sizes = parser.parse_args().bytes
    ddp.init_process_group()
    comm = MPI.COMM_WORLD.Dup()
    for nbytes in sizes:
        for name, (ours, library) in cases(comm, nbytes // 4).items():
            times = [
                (slowest(comm, ours), slowest(comm, library))
                for _ in range(max(5, min(MOST_ROUNDS, BYTES_IN_ALL // nbytes)))
            ]
            own, other = (1e6 * statistics.median(column) for column in zip(*times, strict=True))
            if comm.rank == 0:
                line = {
                    "what": name,
                    "bytes": nbytes,
                    "ranks": comm.size,
                    "us": round(own, 1),
                    "mpi_us": round(other, 1),
                }
                print(json.dumps(line | {"mpi / own": round(other / own, 2)}), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
