"""Times what a prediction needs to know of this host: sums over its ranks, and sums by messages between two of them."""

import time

import numpy as np
from mpi4py import MPI

from ddp.forecast.network import Software
from ddp.forecast.prediction import NO_TIME
from ddp.transport.hierarchical import HierarchicalTransport
from ddp.transport.mpi import MpiTransport
from ddp.transport.shared import SharedTransport
from ddp.transport.timing import SumTimes, median_seconds, sum_seconds, time_sums

_SMALL, _LARGE = 64, 8 * 2**20  # bytes of the sums from which a message and a byte are told apart
_ROUNDS, _WARM_UP = 30, 3


def measure_local(comm: MPI.Intracomm) -> SumTimes:
    """Collective: of a sum over the ranks of this host; nothing where there is one rank."""
    if comm.size == 1:
        return NO_TIME
    transport = SharedTransport(comm)
    found = time_sums(transport, comm)
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
        small, large = (sum_seconds(transport, pair, nbytes, _ROUNDS, _WARM_UP) for nbytes in (_SMALL, _LARGE))
        transport.close()
        message, other = np.zeros(1), 1 - pair.rank

        def meet() -> None:
            pair.Sendrecv(message, other, recvbuf=message.copy(), source=other)

        peer = median_seconds(pair, meet, _ROUNDS, _WARM_UP)
        found = Software(small, max(0.0, large - small) / (_LARGE - _SMALL), peer)
    pair.Free()
    waiting = comm.Ibarrier()
    while not waiting.Test():
        time.sleep(0.005)
    result: Software = comm.bcast(found, root=0)
    return result
