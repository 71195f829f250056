"""The start-up check: a transport must agree with MPI's own sum before a gradient is given to it."""

from typing import TYPE_CHECKING

import numpy as np

from ddp.transport.base import Transport

if TYPE_CHECKING:
    from mpi4py import MPI

_COUNTS = (1, 1000, 70_001)  # one element; less than a block; several blocks, slices of unequal length
_ROUNDS = 2  # the second reuses the buffer


def check_transport(transport: Transport, comm: "MPI.Intracomm | None") -> None:
    """Collective: compare sums of small integers, which are exact in any order, with those of `MPI.Allreduce`.

    Raises RuntimeError on every rank, naming the transport, when any rank sees a difference.
    """
    differences = []
    for count in _COUNTS:
        buffer = transport.allocate(count, np.float32, header=1)
        for round_ in range(_ROUNDS):
            addend = ((np.arange(count) * (transport.rank + 1) + round_) % 64).astype(np.float32)
            expected = addend.copy()
            if comm is not None:
                comm.Allreduce(addend, expected)
            buffer.array[:] = addend
            buffer.header[:] = transport.rank
            transport.start(buffer, divisor=2)
            transport.wait(buffer)
            wrong = np.flatnonzero(buffer.array != expected / 2)
            if wrong.size or buffer.header[0] != transport.size * (transport.size - 1) / 2:
                differences.append(f"rank {transport.rank}: {wrong.size} of {count} elements in round {round_}")
    everyones = [text for rank in (comm.allgather(differences) if comm else [differences]) for text in rank]
    if everyones:
        raise RuntimeError(f"transport {transport.name}: its sums differ from MPI's own: {'; '.join(everyones)}")
