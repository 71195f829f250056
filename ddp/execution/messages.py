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


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive views of a flat array, of at most `MESSAGE_BYTES` each; none of an empty one."""
    length = max(1, MESSAGE_BYTES // array.itemsize)
    for begin in range(0, array.size, length):
        yield array[begin : begin + length]


class Messages:
    """Posts to `comm`; what is not done when a method returns is in `requests`.

    blocking: use MPI's blocking calls, which are faster; alike on every rank, since MPI does not match the two kinds.
    """

    def __init__(self, comm: "MPI.Intracomm", blocking: bool) -> None:
        self._comm = comm
        self._blocking = blocking
        self.requests: list[MPI.Request] = []

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

    def combine_rows(self, rows: np.ndarray, own: np.ndarray, operation: str) -> None:
        """`own` of rank r becomes the combination of row r of all ranks; `rows` is (ranks, count) and is written to."""
        from mpi4py import MPI

        if rows.nbytes <= MESSAGE_BYTES:
            self._call("reduce_scatter_block", rows, own, getattr(MPI, operation))
            return
        for root, row in enumerate(rows):
            self.combine_at(own if root == self._comm.rank else row, operation, root)

    def spread(self, values: np.ndarray, root: int) -> None:
        """Every rank's array becomes that of `root`."""
        for piece in pieces(values.view(np.uint8)):
            self._call("bcast", piece, root)

    def collect(self, rows: np.ndarray) -> None:
        """Row r, which is there on rank r, comes to all; `rows` is (ranks, count)."""
        from mpi4py import MPI

        if rows.nbytes <= MESSAGE_BYTES:
            self._call("allgather", MPI.IN_PLACE, rows.view(np.uint8))
            return
        for root, row in enumerate(rows):
            self.spread(row, root)

    def swap(self, to_send: Sequence[tuple[int, np.ndarray]], to_receive: Sequence[tuple[int, np.ndarray]]) -> None:
        """From rank to rank: (destination, array) and (source, array)."""
        for source, array in to_receive:
            self.requests += [self._comm.Irecv(piece, source) for piece in pieces(array.view(np.uint8))]
        for destination, array in to_send:
            self.requests += [self._comm.Isend(piece, destination) for piece in pieces(array.view(np.uint8))]

    def _call(self, name: str, *arguments: Any) -> None:
        if self._blocking:
            getattr(self._comm, name.capitalize())(*arguments)
        else:
            self.requests.append(getattr(self._comm, f"I{name}")(*arguments))
