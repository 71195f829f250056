"""The messages of one collective between ranks of one node: through memory that all of them see (`ddp.transport.room`).

A collective is a few rounds, as many on every rank. A generator yields what this rank lays down in each, and goes on
when everybody's part is there to be read; it writes into the user's arrays only then, so the words that come with the
first round have been compared before. What is larger than a place goes piece by piece, a round each.

Elements are combined in the order of ranks, by NumPy. What is small all ranks combine, as transports do with small
buffers; of more each a slice, which the others read in the next round, beside the next piece.

What goes from one rank to another only goes through MPI, after the first round: within a node MPI copies such messages
from one process's memory to the other's, once, where a room takes two copies.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ddp.execution.messages import Messages
from ddp.transport.base import slice_bounds
from ddp.transport.summing import combine

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.transport.room import Room

_SMALL_BYTES = 1 << 14  # of all ranks together
NOTHING = np.empty(0, np.uint8)

Pairs = Sequence[tuple[int, np.ndarray]]


class MessagesInMemory(Messages):
    """Notes what is asked for: `rounds` goes through the room, `post` through MPI."""

    def __init__(self, room: "Room", comm: "MPI.Intracomm") -> None:
        super().__init__(comm, blocking=False)
        self._room = room
        self._parts: list[Iterator[np.ndarray]] = []
        self._later: list[Callable[[], None]] = []

    def rounds(self) -> Iterator[np.ndarray]:
        """What this rank lays down, round by round."""
        for parts in self._parts:
            yield from parts

    def post(self, blocking: bool) -> None:
        """Start what goes through MPI, once the calls have been compared."""
        self._blocking = blocking
        for message in self._later:
            message()

    def combine(self, values: np.ndarray, operation: str) -> None:
        self._parts.append(self._combine(values, operation))

    def combine_at(self, values: np.ndarray, operation: str, root: int) -> None:
        self._parts.append(self._combine_at(values, operation, root))

    def combine_rows(self, rows: np.ndarray, own: np.ndarray, operation: str) -> None:
        self._parts.append(self._combine_rows(rows, own, operation))

    def spread(self, values: np.ndarray, root: int) -> None:
        self._parts.append(self._spread(values, root))

    def collect(self, rows: np.ndarray) -> None:
        self._parts.append(self._collect(rows))

    def swap(self, to_send: Pairs, to_receive: Pairs) -> None:
        self._later.append(lambda: Messages.swap(self, to_send, to_receive))

    def _pieces(self, size: int, itemsize: int) -> Iterator[slice]:
        """Of `size` elements, as many as a place holds; one of none where there are none."""
        length = self._room.place_bytes // itemsize
        return (slice(begin, min(begin + length, size)) for begin in range(0, max(size, 1), length))

    def _combine(self, values: np.ndarray, operation: str) -> Iterator[np.ndarray]:
        room = self._room
        if values.nbytes * room.size <= _SMALL_BYTES:
            yield values
            combine(operation, room.parts(values.size, values.dtype), values)
            return
        take_before: Callable[[], None] | None = None
        for piece in self._pieces(values.size, values.itemsize):
            part = values[piece]
            bounds = slice_bounds(part.size, part.itemsize, room.size)
            begin, end = bounds[room.rank : room.rank + 2]
            yield part
            if take_before is not None:
                take_before()
            combine(operation, room.parts(end - begin, part.dtype, begin), part[begin:end])
            room.part(room.rank, end - begin, part.dtype, begin)[...] = part[begin:end]
            take_before = partial(self._take_slices, part, bounds)
        yield NOTHING
        assert take_before is not None
        take_before()

    def _take_slices(self, part: np.ndarray, bounds: Sequence[int]) -> None:
        """What the others have combined of the piece before this round's."""
        for rank in self._others():
            begin, end = bounds[rank : rank + 2]
            part[begin:end] = self._room.part(rank, end - begin, part.dtype, begin, before=1)

    def _combine_at(self, values: np.ndarray, operation: str, root: int) -> Iterator[np.ndarray]:
        for piece in self._pieces(values.size, values.itemsize):
            part = values[piece]
            yield part
            if self._room.rank == root:
                combine(operation, self._room.parts(part.size, part.dtype), part)

    def _combine_rows(self, rows: np.ndarray, own: np.ndarray, operation: str) -> Iterator[np.ndarray]:
        room = self._room
        for piece in self._pieces(own.size, rows.itemsize * room.size):
            part = own[piece]
            yield rows[:, piece]
            combine(operation, room.parts(part.size, part.dtype, part.size * room.rank), part)

    def _spread(self, values: np.ndarray, root: int) -> Iterator[np.ndarray]:
        for piece in self._pieces(values.size, values.itemsize):
            part = values[piece]
            yield part if self._room.rank == root else NOTHING
            if self._room.rank != root:
                part[...] = self._room.part(root, part.size, part.dtype)

    def _collect(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        for piece in self._pieces(rows.shape[1], rows.itemsize):
            part = rows[self._room.rank, piece]
            yield part
            for rank in self._others():
                rows[rank, piece] = self._room.part(rank, part.size, part.dtype)

    def _others(self) -> Iterator[int]:
        return (rank for rank in range(self._room.size) if rank != self._room.rank)
