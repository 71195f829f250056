"""The messages of one collective: MPI's calls, in pieces that MPI can count.

MPI counts elements in 31 bits, so arrays travel in pieces of at most `MESSAGE_BYTES`. Arrays are flat; of what is not
combined the bytes travel, so every dtype does. Ranks are numbers in the group, operations have MPI's names.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE_BYTES = 1 << 30

Pairs = Sequence[tuple[int, np.ndarray]]


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive views of a flat array, of at most `MESSAGE_BYTES` each; none of an empty one."""
    length = max(1, MESSAGE_BYTES // array.itemsize)
    for begin in range(0, array.size, length):
        yield array[begin : begin + length]


def keep(own: np.ndarray, part: np.ndarray) -> None:
    """Copies what goes from this rank to itself, unless it is there."""
    if not np.may_share_memory(own, part):
        part[...] = own


class Messages:
    """Posts to `comm`; what is not done when a method returns is in `requests`, and then `unpack` follows.

    blocking: use MPI's blocking calls, which are faster; alike on every rank, since MPI does not match the two kinds.
    """

    def __init__(self, comm: "MPI.Intracomm", blocking: bool) -> None:
        self._comm = comm
        self._blocking = blocking
        self.requests: list[MPI.Request] = []
        self._rows = np.empty(0)  # a row a rank, for MPI; mpi4py's request of a reduce_scatter does not keep it
        self._parts: Sequence[np.ndarray] = ()  # what these rows are for

    def combine(self, values: np.ndarray, operation: str) -> None:
        """Every rank's array becomes the combination of all."""
        from mpi4py import MPI

        for piece in pieces(values):
            self._call("allreduce", MPI.IN_PLACE, piece, getattr(MPI, operation))

    def combine_at(self, values: np.ndarray, operation: str, root: int) -> None:
        """The array of `root` becomes the combination of all."""
        from mpi4py import MPI

        for piece in pieces(values):
            sent_received = (MPI.IN_PLACE, piece) if self._comm.rank == root else (piece, None)
            self._call("reduce", *sent_received, getattr(MPI, operation), root)

    def combine_rows(self, rows: Sequence[np.ndarray], own: np.ndarray, operation: str) -> None:
        """`own` of rank r becomes the combination of row r, (count,), of all ranks."""
        from mpi4py import MPI

        if own.nbytes * len(rows) <= MESSAGE_BYTES:
            self._rows = np.stack(rows)
            self._call("reduce_scatter_block", self._rows, own, getattr(MPI, operation))
            return
        own[...] = rows[self._comm.rank]
        for root, row in enumerate(rows):
            self.combine_at(own if root == self._comm.rank else row, operation, root)

    def spread(self, values: np.ndarray, root: int) -> None:
        """Every rank's array becomes that of `root`."""
        for piece in pieces(values.view(np.uint8)):
            self._call("bcast", piece, root)

    def collect(self, own: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        """What is `own` on rank r comes to part r, (count,), of all. It may be this rank's part."""
        keep(own, parts[self._comm.rank])
        if own.nbytes * len(parts) > MESSAGE_BYTES:
            others = list(self._others())
            self.swap([(rank, own) for rank in others], [(rank, parts[rank]) for rank in others])
            return
        from mpi4py import MPI

        self._rows = np.empty((len(parts), own.size), own.dtype)
        self._rows[self._comm.rank] = own
        self._parts = parts
        self._call("allgather", MPI.IN_PLACE, self._rows.view(np.uint8))

    def swap(self, to_send: Pairs, to_receive: Pairs) -> None:
        """From rank to rank: (destination, array) and (source, array)."""
        for source, array in to_receive:
            self.requests += [self._comm.Irecv(piece, source) for piece in pieces(array.view(np.uint8))]
        for destination, array in to_send:
            self.requests += [self._comm.Isend(piece, destination) for piece in pieces(array.view(np.uint8))]

    def unpack(self) -> None:
        """The requests are over: what came elsewhere is copied to where it belongs."""
        for rank, part in enumerate(self._parts):
            if rank != self._comm.rank:
                part[...] = self._rows[rank]

    def _others(self) -> Iterator[int]:
        return (rank for rank in range(self._comm.size) if rank != self._comm.rank)

    def _call(self, name: str, *arguments: Any) -> None:
        if self._blocking:
            getattr(self._comm, name.capitalize())(*arguments)
        else:
            self.requests.append(getattr(self._comm, f"I{name}")(*arguments))
