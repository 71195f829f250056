"""The start-up check: a transport must agree with MPI's own sum before a gradient is given to it."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ddp.transport.base import Transport

if TYPE_CHECKING:
    from mpi4py import MPI

# One element; less than a block; slices of unequal length; several chunks of a message.
_COUNTS = (1, 1000, 70_001, 400_003)
_SHORT = 8192  # elements in a call of MPI: of a rank that ends meanwhile long messages are left (ddp.losses.deadlock)
_ROUNDS = 2  # the second reuses the buffer


def check_transport(transport: Transport, comm: "MPI.Intracomm | None") -> None:
    """Collective: compare sums of small integers, which are exact in any order, with those of `MPI.Allreduce`.

    Raises RuntimeError on every rank, naming transport, size, expected and got, when any rank sees a difference.
    """
    differences = []
    for count in _COUNTS:
        buffer = transport.allocate(count, np.float32, header=1)
        for round_ in range(_ROUNDS):
            addend = ((np.arange(count) * (transport.rank + 1) + round_) % 64).astype(np.float32)
            expected = addend.copy()
            if comm is not None:
                for begin in range(0, count, _SHORT):
                    comm.Allreduce(addend[begin : begin + _SHORT], expected[begin : begin + _SHORT])
            expected /= 2
            _fill(buffer.array, addend)
            buffer.header[:] = transport.rank
            transport.start(buffer, divisor=2)
            transport.wait(buffer)
            where = f"rank {transport.rank}, {count} float32, round {round_}"
            result = _on_host(buffer.array)
            wrong = np.flatnonzero(result != expected)
            if wrong.size:
                first = int(wrong[0])
                differences.append(
                    f"{where}: {wrong.size} differ, element {first}: expected {expected[first]:g}, "
                    f"got {result[first]:g}"
                )
            header = transport.size * (transport.size - 1) / 2
            if buffer.header[0] != header:
                differences.append(f"{where}: header: expected {header:g}, got {buffer.header[0]:g}")
    everyones = [text for rank in (comm.allgather(differences) if comm else [differences]) for text in rank]
    if everyones:
        raise RuntimeError(f"transport {transport.name}: its sums differ from MPI's own: {'; '.join(everyones)}")


def _fill(array: Any, values: np.ndarray) -> None:
    """Writes to an array in host or device memory."""
    if isinstance(array, np.ndarray):
        array[:] = values
    else:
        array.set(values)


def _on_host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()
