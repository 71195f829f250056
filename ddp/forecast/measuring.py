"""Times what a prediction needs to know of this host: sums over its ranks, and sums by messages between two of them."""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from ddp.forecast.network import Software
from ddp.transport import Transport
from ddp.transport.hierarchical import HierarchicalTransport
from ddp.transport.mpi import MpiTransport
from ddp.transport.shared import SharedTransport

_SMALL, _LARGE = 64, 8 * 2**20  # bytes of the sums from which a message and a byte are told apart
_ROUNDS, _WARM_UP = 30, 3


def measure_local(comm: MPI.Intracomm, sizes: Sequence[int]) -> dict[int, float]:
    """Collective: seconds of a sum of so many bytes over the ranks of this host; nothing where there is one rank."""
    if comm.size == 1:
        return {}
    transport = SharedTransport(comm)
    found = {nbytes: _sum_seconds(comm, transport, nbytes) for nbytes in sorted(set(sizes))}
    transport.close()
    return found


def measure_software(comm: MPI.Intracomm, chain: bool) -> Software:
    """Collective: what messages between the first two ranks take, of the chain of nodes or of the exchange.

    The other ranks sleep meanwhile.
    """
    pair = comm.Split(int(comm.rank > 1), comm.rank)
    assert isinstance(pair, MPI.Intracomm)
    found = None
    if comm.rank < 2:
        transport = HierarchicalTransport(pair, node=pair.rank) if chain else MpiTransport(pair)
        small, large = (_sum_seconds(pair, transport, nbytes) for nbytes in (_SMALL, _LARGE))
        transport.close()
        message, other = np.zeros(1), 1 - pair.rank
        peer = _median_seconds(pair, lambda: pair.Sendrecv(message, other, recvbuf=message.copy(), source=other))
        found = Software(small, max(0.0, large - small) / (_LARGE - _SMALL), peer)
    pair.Free()
    waiting = comm.Ibarrier()
    while not waiting.Test():
        time.sleep(0.005)
    result: Software = comm.bcast(found, root=0)
    return result


def _sum_seconds(comm: MPI.Intracomm, transport: Transport, nbytes: int) -> float:
    buffer = transport.allocate(max(1, nbytes // 4), np.float32, header=8)

    def run() -> None:
        transport.start(buffer)
        transport.wait(buffer)

    return _median_seconds(comm, run)


def _median_seconds(comm: MPI.Intracomm, run: Callable[[], object]) -> float:
    """Of the slowest rank."""
    times = []
    for _ in range(_WARM_UP + _ROUNDS):
        comm.Barrier()
        began = time.perf_counter()
        run()
        times.append(max(comm.allgather(time.perf_counter() - began)))
    return statistics.median(times[_WARM_UP:])
