"""The messages of one collective between ranks of one node: through memory that all of them see (`ddp.transport.room`).

They go in rounds, of what fits into a place of that memory: every rank lays down what others are to read, and reads
when everybody's is there. In the first round the words that are compared lie beside it, and nobody writes into the
user's arrays before they are, so calls that do not fit together change nothing. Elements are combined in the order of
ranks, by NumPy: of what is large each rank combines a slice.

A rank knows how many rounds there are by the sizes, which are alike where calls fit together; what goes from rank to
rank in sizes that others need not know (`swap`: gather, scatter, all-to-all) has as many as the rank says in the first
that needs most.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddp.execution.messages import Messages, Pairs
from ddp.transport.base import CACHE_LINE, slice_bounds
from ddp.transport.summing import combine

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.transport.room import Room

Rounds = Iterator[Sequence[np.ndarray] | None]
"""Gives by turns what this rank lays down for a round, and None where it is to go on when everybody's is there; as many
times on every rank.
"""


class MessagesInMemory(Messages):
    """Notes what is asked for: `begin` is for the call, `go_on` does the rest."""

    def __init__(self, room: "Room", comm: "MPI.Intracomm") -> None:
        super().__init__(comm, blocking=False)
        self._room = room
        self._rounds: Rounds = iter(())
        self._apart = 0  # bytes from one array laid down to the next; 0: one behind the other
        self._needs = 0  # rounds, where others cannot know how many

    def begin(self, words: tuple[int, int]) -> None:
        """This rank lays down what it has for the round in which the calls are compared, by these words."""
        laid = next(self._rounds, None)
        self._room.lay_down(() if laid is None else laid, (*words, self._needs), self._apart)

    def go_on(self) -> Iterator[None]:
        """What is to be done when everybody has laid down, and the calls have been compared. Gives None whenever others
        have to be waited for.
        """
        for laid in self._rounds:
            if laid is not None:
                self._room.lay_down(laid, (), self._apart)
                continue
            while not self._room.is_filled():
                yield

    def combine(self, values: np.ndarray, operation: str) -> None:
        whole = 2 * values.nbytes <= self._room.place_bytes
        self._rounds = (self._combine_whole if whole else self._combine_in_turns)(values, operation)

    def combine_at(self, values: np.ndarray, operation: str, root: int) -> None:
        rows = [values if rank == root else values[:0] for rank in range(self._room.size)]
        self._rounds = self._combine_rows(rows, rows[self._room.rank], 1, operation)

    def combine_rows(self, rows: Sequence[np.ndarray], own: np.ndarray, operation: str) -> None:
        self._rounds = self._combine_rows(rows, own, len(rows) - 1, operation)

    def spread(self, values: np.ndarray, root: int) -> None:
        self._rounds = self._copy(values, [root], {root: values} if self._room.rank != root else {})

    def collect(self, own: np.ndarray, parts: Sequence[np.ndarray]) -> None:
        to_fill = dict(enumerate(parts))
        if np.may_share_memory(own, parts[self._room.rank]):
            del to_fill[self._room.rank]
        self._rounds = self._copy(own, range(self._room.size), to_fill)

    def swap(self, to_send: Pairs, to_receive: Pairs) -> None:
        octets = [{rank: array.view(np.uint8) for rank, array in pairs} for pairs in (to_send, to_receive)]
        self._apart = self._room.place_bytes // self._room.size // CACHE_LINE * CACHE_LINE
        self._needs = max((-(-array.size // self._apart) for array in octets[0].values()), default=0)
        self._rounds = self._swap(*octets)

    def _swap(self, to_send: Mapping[int, np.ndarray], to_receive: Mapping[int, np.ndarray]) -> Rounds:
        """Of a place an equal part is for each rank."""
        room, apart, nothing = self._room, self._apart, np.empty(0, np.uint8)
        begin, end = 0, apart
        while begin < end:
            yield [to_send.get(rank, nothing)[begin : begin + apart] for rank in range(room.size)]
            yield None
            if not begin:
                end = apart * max(words[-1] for words in room.words())
            for rank, whole in to_receive.items():
                if (part := whole[begin : begin + apart]).size:
                    part[...] = room.part(rank, part.size, part.dtype, apart * room.rank)
            begin += apart

    def _pieces(self, count: int, nbytes: int) -> Iterator[slice]:
        """So many elements, in pieces that fit into a place, where each element takes so many bytes."""
        length = self._room.place_bytes // nbytes
        return (slice(begin, min(begin + length, count)) for begin in range(0, count, length))

    def _copy(self, own: np.ndarray, sources: Sequence[int], parts: Mapping[int, np.ndarray]) -> Rounds:
        """What is `own` on these sources comes to the parts that this rank has of theirs."""
        room = self._room
        for piece in self._pieces(own.size, own.itemsize):
            laid = own[piece]
            yield (laid,) if room.rank in sources else ()
            if room.rank in parts:  # in the time in which others lay down theirs; this is in a cache
                parts[room.rank][piece] = laid
            yield None
            for rank, part in parts.items():
                if rank != room.rank:
                    part[piece] = room.part(rank, laid.size, own.dtype)

    def _combine_whole(self, values: np.ndarray, operation: str) -> Rounds:
        """`values`, which fit into a place, become the combination on every rank, which each makes for itself: a round
        less than in turns. 256 KiB, two ranks 0.12 and 0.13 ms, four ranks on two cores 0.45 and 0.84.
        """
        yield (values,)
        yield None
        combine(operation, self._room.parts(values.size, values.dtype), values)

    def _combine_rows(self, rows: Sequence[np.ndarray], own: np.ndarray, laid: int, operation: str) -> Rounds:
        """`own` of rank r, which may be its row r, becomes the combination of row r of all ranks. Rows are of one size,
        or empty; a rank lays down at most so many.
        """
        for piece in self._pieces(max(row.size for row in rows), own.itemsize * laid):
            rows_now = [row[piece] for row in rows]
            yield self._but_own(rows_now)
            yield None
            self._combine_own(rows_now, own[piece], operation)

    def _combine_in_turns(self, values: np.ndarray, operation: str) -> Rounds:
        """`values` become the combination on every rank: of what lies there in a round each combines a slice, and lays
        that down in the next one for the others.
        """
        room = self._room
        most = room.place_bytes // room.size // CACHE_LINE * CACHE_LINE  # bytes of a slice
        rounds = -(-values.nbytes // (most * room.size))
        bounds = slice_bounds(values.size, values.itemsize, rounds * room.size)
        slices = [values[begin:end] for begin, end in pairwise(bounds)]
        last = nothing = [values[:0]] * room.size
        slices += nothing
        for begin in range(0, len(slices), room.size):
            rows = slices[begin : begin + room.size]
            yield *self._but_own(rows), last[room.rank]
            yield None
            behind = sum(row.size for row in rows)
            for rank, part in enumerate(last):
                if rank != room.rank:
                    part[...] = room.part(rank, part.size, part.dtype, behind - rows[rank].size)
            self._combine_own(rows, rows[room.rank], operation)
            last = rows

    def _but_own(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [row for rank, row in enumerate(rows) if rank != self._room.rank]

    def _combine_own(self, rows: Sequence[np.ndarray], out: np.ndarray, operation: str) -> None:
        """`out`, which may be this rank's row, becomes the combination of this row of all ranks, where every other has
        laid down its rows but its own.
        """
        if not out.size:
            return
        rank = self._room.rank
        before = sum(row.size for row in rows[:rank])
        parts = list(rows)
        for other in self._others():
            first = before - (rows[other].size if other < rank else 0)
            parts[other] = self._room.part(other, out.size, out.dtype, first)
        combine(operation, parts, out, np.empty_like(out) if rank > 1 else None)
