"""A page of memory for each rank, that it writes and all others can read at any time, whatever the writer is doing.

On a node the pages are memory of all its ranks. Between nodes they are read by one-sided MPI, from the watchdog's
thread, so that needs `MPI_THREAD_MULTIPLE`; without it the pages of other nodes cannot be read. To free them is
collective, so it waits for ranks that do not come, as the end of MPI would; until they do, all pages can be read.
"""

import logging
import time
import zlib
from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

logger = logging.getLogger("ddp")

_PAGE = 1 << 16  # bytes
_HEADER = 8  # of them: length and checksum; the checksum tells a page that is just being written
PAGE_TEXT = _PAGE - _HEADER
_READ_SECONDS = 3.0  # a rank inside MPI_Finalize takes up to 1.5 s to let its page be read (Open MPI 5, TCP)
_POLL = 1e-3


class Board:
    """Making one is collective. comm: ranks of any number of nodes."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self.rank = comm.rank
        self.size = comm.size
        self._read: dict[int, bytes] = {}  # the last text of each rank that was complete
        node = cast("MPI.Intracomm", comm.Split_type(MPI.COMM_TYPE_SHARED))
        self._pages = _map_pages(node, comm)
        self._own_pages = [self._pages[self.rank]]
        self.neighbours = tuple(self._pages)
        several_nodes = comm.allreduce(node.size < comm.size, MPI.LOR)
        node.Free()
        self._window: MPI.Win | None = None
        self._unanswered: list[MPI.Request] = []  # they hold the memory that may yet be written to
        if several_nodes and comm.allreduce(MPI.Query_thread(), MPI.MIN) == MPI.THREAD_MULTIPLE:
            self._window = MPI.Win.Allocate(_PAGE, 1, comm=comm)
            self._window.Lock_all(MPI.MODE_NOCHECK)
            page = np.asarray(self._window.tomemory()).view(np.uint8).data
            page[:] = bytes(_PAGE)
            self._own_pages.append(page)
            comm.Barrier()

    def write(self, text: bytes) -> None:
        """This rank's page; at most `PAGE_TEXT` bytes."""
        header = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
        for page in self._own_pages:
            page[_HEADER : _HEADER + len(text)] = text
            page[:_HEADER] = header

    def read(self, rank: int) -> bytes | None:
        """What a rank has written last, or the last that could be read; None if nothing ever could."""
        page = self._pages[rank] if rank in self._pages else self._fetch(rank)
        if page is not None:
            length = int.from_bytes(page[:4], "little")
            text = bytes(page[_HEADER : _HEADER + length])
            if text and zlib.crc32(text) == int.from_bytes(page[4:_HEADER], "little"):
                self._read[rank] = text
        return self._read.get(rank)

    def let_others_read(self) -> None:
        """To be called now and then: MPI makes progress, on this side, too, only while somebody calls it."""
        if self._window is not None:
            from mpi4py import MPI

            MPI.COMM_WORLD.Iprobe()

    def close(self) -> None:
        """Collective: of other nodes' pages; UCX, under MPICH, names each memory that it still has when MPI ends."""
        from mpi4py import MPI

        if self._window is not None and not MPI.Is_finalized():
            self._window.Unlock_all()  # waits for what was not answered
            del self._own_pages[1:]
            self._window.Free()
            self._window = None

    def _fetch(self, rank: int) -> memoryview | None:
        if self._window is None:
            return None
        from mpi4py import MPI

        page = np.empty(_PAGE, np.uint8)
        request = self._window.Rget(page, rank, (0, _PAGE, MPI.BYTE))
        deadline = time.monotonic() + _READ_SECONDS
        while not request.Test():
            if time.monotonic() > deadline:
                self._unanswered.append(request)
                return None
            time.sleep(_POLL)
        return memoryview(page.data)


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
