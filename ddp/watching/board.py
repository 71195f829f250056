"""A page of memory for each rank, that it writes and all others can read at any time, whatever the writer is doing.

On a node the pages are memory of all its ranks. Those of other nodes are asked for by messages, which a thread of each
rank answers: where a network is down, MPI may keep it for as long as it likes, and nobody waits for it. That needs
`MPI_THREAD_MULTIPLE`; without it the pages of other nodes cannot be read.

Why not one-sided MPI: Open MPI's first `MPI_Rget` to a rank waits inside the call, on a whole core, for as long as that
rank imports modules or compiles, perhaps on the same core.
"""

import logging
import sys
import threading
import time
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ddp import losses

if TYPE_CHECKING:
    from mpi4py import MPI

logger = logging.getLogger("ddp")

_PAGE = 1 << 16  # bytes
_HEADER = 8  # of them: length and checksum; the checksum tells a page that is just being written
PAGE_TEXT = _PAGE - _HEADER
_PERIOD = 0.5  # seconds: MPI makes progress, on this side, too, only while somebody calls it
_POLL = 2e-3  # while an answer is awaited
_POLLS = 500  # so often; then as seldom as without
_AGAIN = 1.0  # seconds without an answer until a rank is asked again
_CONNECTED = 128  # ranks of other nodes, of each of which a connection is made at once
_CLOSING = 5.0  # seconds, of which a board that closes needs a hundredth unless a rank is in trouble
_ASK, _ANSWER = 1, 2  # tags


class _Question(NamedTuple):
    """What was sent to a rank of another node, when, and what receives its page."""

    at: float
    sent: "MPI.Request"
    answer: "MPI.Request"
    page: np.ndarray


class Board:
    """Making one is collective. comm: ranks of any number of nodes, which the board keeps."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        from mpi4py import MPI

        self.rank = comm.rank
        self.size = comm.size
        self._texts: dict[int, bytes] = {}  # the last text of each rank that was complete
        node = cast("MPI.Intracomm", comm.Split_type(MPI.COMM_TYPE_SHARED))
        self._pages = _map_pages(node, comm)
        self._own_page = self._pages[self.rank]
        self.neighbours = tuple(self._pages)
        self.others: tuple[int, ...] = ()  # on other nodes, where their pages can be read
        several_nodes = any(comm.allgather(node.size < comm.size))
        node.Free()
        self._comm = comm
        self._wanted: set[int] = set()
        self._questions: dict[int, list[_Question]] = {}  # not answered yet, in the order of their answers
        self._answers: list[tuple[MPI.Request, bytes]] = []  # under way, with what must not move meanwhile
        self._asked: dict[int, float] = {}  # since when a rank owes a new text
        self._answered: dict[int, float] = {}
        self._wake, self._closing = threading.Event(), False
        self._thread: threading.Thread | None = None
        if several_nodes and min(comm.allgather(MPI.Query_thread())) == MPI.THREAD_MULTIPLE:
            self.others = tuple(rank for rank in range(self.size) if rank not in self._pages)
            # MPI connects two ranks when they first send, and where a network is cut by then, the job ends there.
            self._wanted.update(self.others if len(self.others) <= _CONNECTED else ())
            self._thread = threading.Thread(target=self._run, name="ddp board", daemon=True)
            self._thread.start()

    def write(self, text: bytes) -> None:
        """This rank's page; at most `PAGE_TEXT` bytes."""
        header = len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little")
        self._own_page[_HEADER : _HEADER + len(text)] = text
        self._own_page[:_HEADER] = header

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
        """Collective, and once; no page of another node is read any more."""
        from mpi4py import MPI

        if self._thread is None or MPI.Is_finalized():
            return
        self._closing = True
        self._wake.set()
        self._thread.join(_CLOSING)  # not for ever: it may be inside MPI, for a rank that is gone

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except sys.modules["mpi4py.MPI"].Exception as error:
            if not losses.tells_of_loss(error):  # then there is another board
                raise

    def _serve(self) -> None:
        polls, everybody = 0, None
        while everybody is None or not everybody.Test():
            self._answer_all()
            while self._wanted:
                self._question(self._wanted.pop())
                polls = _POLLS
            for rank in [rank for rank, questions in self._questions.items() if questions[0].answer.Test()]:
                self._hear(rank)
            if self._closing and everybody is None and not self._questions and not self._wanted:
                everybody = self._comm.Ibarrier()  # until then others may ask
            polls = polls - 1 if self._questions else 0
            self._wake.wait(_POLL if polls > 0 or self._closing else _PERIOD)
            self._wake.clear()
        while self._answers:  # somebody waits for each
            self._answers.pop()[0].Wait()

    def _question(self, rank: int) -> None:
        """Asks again, ever more seldom, while there is no answer: a host that had acknowledged the question before it
        was cut off has nothing else to acknowledge, and would be taken for one that is alive.
        """
        now, open_ones = time.monotonic(), self._questions.setdefault(rank, [])
        if open_ones and now - open_ones[-1].at < max(_AGAIN, (now - open_ones[0].at) / 2):
            return
        page = np.zeros(_PAGE, np.uint8)
        answer = self._comm.Irecv(page, rank, _ANSWER)
        open_ones.append(_Question(now, self._comm.Isend(b"", rank, _ASK), answer, page))

    def _hear(self, rank: int) -> None:
        question = self._questions[rank].pop(0)
        if not self._questions[rank]:
            del self._questions[rank]
        question.sent.Wait()  # it has arrived
        before = self._texts.get(rank)
        self._take(rank, memoryview(question.page.data))
        if self._texts.get(rank) != before:  # a text has a beat, so one that lives writes another
            self._asked.pop(rank, None)
            self._answered[rank] = time.monotonic()

    def _answer_all(self) -> None:
        from mpi4py import MPI

        self._answers = [answer for answer in self._answers if not answer[0].Test()]
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _ASK, status):
            rank = status.Get_source()
            self._comm.Recv(bytearray(), rank, _ASK)
            page = bytes(self._own_page[: _HEADER + int.from_bytes(self._own_page[:4], "little")])
            self._answers.append((self._comm.Isend(page, rank, _ANSWER), page))

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
