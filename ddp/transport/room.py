"""A room in memory that all ranks of a node see, where each lays down what the others are to read, round by round.

Every rank has two places, which take turns, and a number: `filled = k` says that it has laid down its part of round k.
A rank reads what it wants of all places once everybody has filled round k, and lays down its part of round k + 1 after
that. So a place is written to again, in round k + 2, when each rank has been seen to have filled the round between, and
it did so after it had read this one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ddp.transport.base import CACHE_LINE, in_words, stopped
from ddp.transport.fence import Fence
from ddp.transport.nodes import count_cores
from ddp.transport.pausing import SPINS
from ddp.transport.segments import map_segments

PLACE_BYTES = 1 << 19
"""What is larger takes several rounds (`ddp.execution.in_memory`), of about 6 µs each beside the copying.

Two ranks on two cores, Intel Xeon with AVX-512, medians in ms by places of 256 and of 512 KiB: `all_reduce` of 512 KiB
0.23 and 0.20, of 4 MiB 1.09 and 0.98, of 16 MiB 5.2 and 4.4; `broadcast` 0.109 and 0.103, 0.52 and 0.50, 2.2 and 2.0;
`all_gather` 0.22 and 0.20, 1.25 and 1.20, 7.3 and 7.3. By places of 1 MiB a `broadcast` of 1 MiB, which nobody reads
before all of it is there, takes 0.20, by those of 512 KiB 0.16.
"""
_PLACES = 2
_WORDS = 3  # of 64 bits, that each rank lays down beside its bytes


class Room:
    """Making one is collective over the ranks of `comm`, which are on one node.

    RuntimeError on every rank where they cannot share memory.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.place_bytes = PLACE_BYTES
        self.spins = 0 if comm.size > count_cores(comm) else SPINS
        place = CACHE_LINE + self.place_bytes
        self._memory, length = map_segments(comm, CACHE_LINE + _PLACES * place)
        numbers = memoryview(self._memory)
        begins = range(0, length * comm.size, length)
        self._filled = [numbers[at : at + 8].cast("Q") for at in begins]
        starts = [[at + CACHE_LINE + turn * place for at in begins] for turn in range(_PLACES)]
        self._words = [[numbers[at : at + 8 * _WORDS].cast("Q") for at in of_turn] for of_turn in starts]
        self._bytes = [[at + CACHE_LINE for at in of_turn] for of_turn in starts]
        self._fence = Fence()
        self._round = 0
        self._seen = 0  # ranks before this one have filled this round
        self.looks = 0  # of whoever waits for the others, since they were there last
        self._stopped = ""  # by which exception

    def lay_down(self, parts: Sequence[NDArray[Any]], words: Sequence[int] = (), apart: int = 0) -> None:
        """What this rank has for the next round: flat arrays, one behind the other or so many bytes from one to the
        next, of at most `place_bytes` in all; up to three numbers < 2**64.

        RuntimeError after `stop`.
        """
        if self._stopped:
            raise stopped("shared memory", self._stopped)
        self._round += 1
        self._seen = self.looks = 0
        own = self._words[self._round % _PLACES][self.rank]
        for place, word in enumerate(words):
            own[place] = word
        begin = self._bytes[self._round % _PLACES][self.rank]
        for part in parts:
            np.ndarray(part.shape, part.dtype, self._memory, begin)[...] = part
            begin += apart or part.nbytes
        self._fence.sync()
        self._filled[self.rank][0] = self._round

    def is_filled(self) -> bool:
        """Whether every rank's part of this round is there."""
        while self._seen < self.size:
            if self._filled[self._seen][0] < self._round:
                return False
            self._seen += 1
        self._fence.sync()
        return True

    def words(self) -> list[list[int]]:
        """Of all ranks in this round."""
        return [words.tolist() for words in self._words[self._round % _PLACES]]

    def part(self, rank: int, count: int, dtype: DTypeLike, first: int = 0) -> NDArray[Any]:
        """So many elements, from the given one on, of what a rank has laid down: a view, good until the next round."""
        dtype = np.dtype(dtype)
        begin = self._bytes[self._round % _PLACES][rank] + first * dtype.itemsize
        return np.ndarray((count,), dtype, self._memory, begin)

    def parts(self, count: int, dtype: DTypeLike, first: int = 0) -> list[NDArray[Any]]:
        """The same of all ranks."""
        return [self.part(rank, count, dtype, first) for rank in range(self.size)]

    def stop(self, error: BaseException) -> None:
        """An exception in the midst of a round has left out what others wait for: nothing can come after it."""
        self._stopped = self._stopped or in_words(error)

    def close(self) -> None:
        """Gives back what is MPI's; waits for nobody. The memory goes when nobody looks at it."""
        self._fence.close()
