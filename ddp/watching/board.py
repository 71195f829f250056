"""A page of memory for each rank, that it writes and all others can read at any time, whatever the writer is doing.

On a node the pages are memory of all its ranks. Between nodes they are asked for by one-sided MPI, in a thread that
does nothing else: where a network is down, MPI may keep it for as long as it likes, and nobody waits for it. That needs
`MPI_THREAD_MULTIPLE`; without it the pages of other nodes cannot be read.
"""

import logging
import threading
import time
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

logger = logging.getLogger("ddp")

_PAGE = 1 << 16  # bytes
_HEADER = 8  # of them: length and checksum; the checksum tells a page that is just being written
PAGE_TEXT = _PAGE - _HEADER
_PERIOD = 0.5  # seconds: MPI makes progress, on this side, too, only while somebody calls it
_POLL = 2e-3  # while an answer is awaited
_POLLS = 500  # so often; then as seldom as without


class Board:
    """Making one is collective. comm: ranks of any number of nodes, which the board keeps."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self.rank = comm.rank
        self.size = comm.size
        self._texts: dict[int, bytes] = {}  # the last text of each rank that was complete
        node = cast("MPI.Intracomm", comm.Split_type(MPI.COMM_TYPE_SHARED))
        self._pages = _map_pages(node, comm)
        self._own_pages = [self._pages[self.rank]]
        self.neighbours = tuple(self._pages)
        self.others: tuple[int, ...] = ()  # on other nodes, where their pages can be read
        several_nodes = any(comm.allgather(node.size < comm.size))
        node.Free()
        self._window: MPI.Win | None = None
        self._wanted: set[int] = set()
        self._requests: dict[int, tuple[MPI.Request, np.ndarray]] = {}
        self._asked: dict[int, float] = {}  # since when a rank owes a new text
        self._answered: dict[int, float] = {}
        self._wake, self._closed = threading.Event(), False
        if several_nodes and min(comm.allgather(MPI.Query_thread())) == MPI.THREAD_MULTIPLE:
            self._window = MPI.Win.Allocate(_PAGE, 1, comm=comm)
            self._window.Lock_all(MPI.MODE_NOCHECK)
            page = np.asarray(self._window.tomemory()).view(np.uint8).data
            page[:] = bytes(_PAGE)
            self._own_pages.append(page)
            comm.Barrier()
            self.others = tuple(rank for rank in range(self.size) if rank not in self._pages)
            self._thread = threading.Thread(target=self._run, name="ddp board", daemon=True)
            self._thread.start()

    def write(self, text: bytes) -> None:
        """This rank's page; at most `PAGE_TEXT` bytes."""
        header = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
        for page in self._own_pages:
            page[_HEADER : _HEADER + len(text)] = text
            page[:_HEADER] = header

    def ask(self, ranks: Iterable[int]) -> None:
        """Have the pages of these ranks of other nodes read anew; the answers are there when they are there."""
        now = time.monotonic()
        for rank in ranks:
            self._asked.setdefault(rank, now)
            self._wanted.add(rank)
        self._wake.set()

    def read(self, rank: int) -> bytes | None:
        """What a rank has written last, or the last that could be read; None if nothing ever could. Does not wait."""
        if rank in self._pages:
            self._take(rank, self._pages[rank])
        return self._texts.get(rank)

    def silence(self, rank: int) -> float:
        """For how many seconds a rank of another node has been asked, and has not written anything new."""
        asked = self._asked.get(rank)
        return 0.0 if asked is None else time.monotonic() - asked

    def forget(self) -> None:
        """What was asked for and not answered counts no more."""
        self._asked.clear()

    def answered(self, rank: int) -> float:
        """When a rank of another node has written something new, as far as is known; time.monotonic()."""
        return self._answered.get(rank, 0.0)

    def close(self) -> None:
        """Collective: of other nodes' pages; UCX, under MPICH, names each memory that it still has when MPI ends."""
        from mpi4py import MPI

        if self._window is None or MPI.Is_finalized():
            return
        self._closed = True
        self._wake.set()
        self._thread.join(_PERIOD)
        if self._thread.is_alive():
            return  # inside MPI, with the window in its hands
        self._window.Unlock_all()  # waits for what was not answered
        del self._own_pages[1:]
        self._window.Free()
        self._window = None

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        from mpi4py import MPI

        polls = 0
        while not self._closed:
            MPI.COMM_WORLD.Iprobe()
            while self._wanted:
                self._fetch(self._wanted.pop())
                polls = _POLLS
            answered = [rank for rank, (request, _) in self._requests.items() if request.Test()]
            for rank in answered:
                self._answer(rank)
            polls = polls - 1 if self._requests else 0
            self._wake.wait(_POLL if polls > 0 else _PERIOD)
            self._wake.clear()

    def _fetch(self, rank: int) -> None:
        if rank not in self._requests:
            from mpi4py import MPI

            assert self._window is not None
            page = np.empty(_PAGE, np.uint8)  # kept with the request: it may yet be written to
            self._requests[rank] = self._window.Rget(page, rank, (0, _PAGE, MPI.BYTE)), page

    def _answer(self, rank: int) -> None:
        _, page = self._requests.pop(rank)
        before = self._texts.get(rank)
        self._take(rank, memoryview(page.data))
        if self._texts.get(rank) != before:  # a text has a beat, so one that lives writes another
            self._asked.pop(rank, None)
            self._answered[rank] = time.monotonic()

    def _take(self, rank: int, page: memoryview) -> None:
        length = int.from_bytes(page[:4], "little")
        text = bytes(page[_HEADER : _HEADER + length])
        if text and zlib.crc32(text) == int.from_bytes(page[4:_HEADER], "little"):
            self._texts[rank] = text


def _map_pages(node: "MPI.Intracomm", comm: "MPI.Intracomm") -> dict[int, memoryview]:
    """The pages of the ranks of this node, by number in `comm`; if need be, of this rank only."""
    from ddp.transport.segments import map_segments

    ranks = node.allgather(comm.rank)
    try:
        memory, length = map_segments(node, _PAGE)
    except RuntimeError as error:
        logger.warning("the ranks of this node cannot see how far the others are: %s", error)
        return {comm.rank: memoryview(bytearray(_PAGE))}
    return {rank: memoryview(memory)[place * length : place * length + _PAGE] for place, rank in enumerate(ranks)}
