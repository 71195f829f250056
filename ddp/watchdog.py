"""A rank that waits too long for the others says whom it waits for and where those are; when that is hopeless, it ends
the job.

A thread on every rank looks twice a second at what its main thread does (`ddp.progress`) and writes it, with the Python
stack, to a page that all ranks can read (`ddp.board`). When its own main thread has waited for a while it reads the
others' pages:

* A rank that is waited for **has ended** (`sys.exit` on one rank only, say): the job is ended.
* Ranks **wait for one another**, in different collectives, a bucket of gradients or messages: the job is ended.
* **Soft timeout**: after a minute, or half the group's timeout if that is less, it prints who is late, in which
  collective or bucket, and the Python stack there; then again whenever the time has doubled.
* **Hard timeout**, that of the group (`init_process_group(timeout=...)`, 30 minutes): the same, and the job is ended.

Of all that wait for the same, the lowest rank speaks. The hot path writes two Python attributes a collective or bucket.
"""

import atexit
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING

from ddp import bootstrap, progress
from ddp.agreement import name_ranks
from ddp.board import PAGE_TEXT, Board
from ddp.verdict import (
    Place,
    Record,
    Waiting,
    describe_gone,
    describe_ranks,
    describe_wait,
    gone_ranks,
    late_ranks,
    stuck_ranks,
)

if TYPE_CHECKING:
    from mpi4py import MPI

_PERIOD = 0.5  # seconds between looks; one costs 10 µs, and 6 µs for each page that is read
_PATIENCE = 1.0  # seconds of waiting that are nothing to look into
_SOFT = 60.0  # seconds until the first report; Horovod's number, too
_READING = 5.0  # seconds for reading the pages of all ranks; those of other nodes may be slow to come
_FRAMES = 20  # of a stack, the innermost
_OWN_CODE = os.path.dirname(__file__) + os.sep

Records = dict[int, Record]


class Watchdog:
    """See the module. Making one is collective. comm: the world."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self.rank = comm.rank
        self._board = Board(comm)
        self._process = os.getpid()
        self._next_look = 0.0
        self._seen: dict[int, tuple[float, float]] = {}  # of ranks on other nodes: last sign of life, first seen at
        self._reported: tuple[progress.Wait, float] | None = None  # the wait last reported, and when to do so again
        self._hopeless: tuple[str, float] | None = None  # why nobody can go on, and since when that is known
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddp watchdog", daemon=True)
        self._publish("")
        self._thread.start()

    def stop(self, ended: str) -> None:
        """Collective: this rank contributes nothing any more; `ended` says why, as in `Record`."""
        if os.getpid() == self._process:  # not a child of ours
            self._stop.set()
            self._thread.join()
            self._publish(ended)
            self._board.close()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD):
            self._publish("")
            self._board.let_others_read()
            wait, now = progress.current_wait(), time.monotonic()
            if wait is None or now - wait.since < _PATIENCE:
                self._next_look = 0.0
            elif now > self._next_look:
                # Who waits for minutes need not look twice a second: on many ranks a look takes a while.
                self._next_look = now + min((now - wait.since) / 10, 5.0)
                self._look_into(wait)

    def _publish(self, ended: str) -> None:
        record = _own_record(ended)
        text = json.dumps(record).encode()
        if len(text) > PAGE_TEXT:  # thousands of channels, of messages between many pairs of ranks
            text = json.dumps(record._replace(contributed=None)).encode()
        self._board.write(text)

    def _read(self, ranks: Iterable[int]) -> Records:
        records = {}
        deadline = time.monotonic() + _READING
        for rank in ranks:
            text = self._board.read(rank) if time.monotonic() < deadline else None
            if text is not None:
                records[rank] = _parse(text)
        for rank in records.keys() - self._board.neighbours:
            # Another node has another clock: what counts is when its last sign of life was first seen here.
            beat = records[rank].beat
            if self._seen.get(rank, (None, 0.0))[0] != beat:
                self._seen[rank] = beat, time.monotonic()
            records[rank] = records[rank]._replace(beat=self._seen[rank][1])
        return records

    # --- when it has waited for a while -------------------------------------------------------------------------------

    def _look_into(self, wait: progress.Wait) -> None:
        records = self._read(self._board.neighbours)
        own = records[self.rank].waiting
        if own is None or own.since != wait.since:
            return  # it has gone on meanwhile
        speaks = self.rank == _speaker(own, records)
        if speaks:
            records |= self._read(rank for rank in range(self._board.size) if rank not in records)
            speaks = self.rank == _speaker(own, records)
        now = time.monotonic()
        gone, stuck, late = gone_ranks(own, records), stuck_ranks(records), late_ranks(own, records)
        if gone:
            self._give_up(describe_gone(own, gone, records), speaks, records)
        elif self.rank in stuck:
            reason = f"{name_ranks(stuck)} wait for each other, and that would never end"
            self._give_up(reason, self.rank == stuck[0], records)
        else:
            self._hopeless = None
            whom = name_ranks(late) if late else "bytes to arrive, or ranks that cannot be seen from here"
            headline = f"rank {self.rank} has been waiting in {describe_wait(own, now)}, for {whom}"
            if now - own.since > own.timeout + (0 if speaks else 2 * _PATIENCE):
                self._end_job(f"{headline}; that is longer than the timeout of {own.timeout:g} s", records)
            elif speaks:
                self._report(wait, headline, records)

    def _report(self, wait: progress.Wait, headline: str, records: Records) -> None:
        timeout = wait.channel.timeout
        if self._reported is None or self._reported[0] is not wait:
            self._reported = wait, min(_SOFT, timeout / 2)
        due = self._reported[1]
        if time.monotonic() - wait.since > due:
            self._reported = wait, 2 * due if 2 * due < timeout else math.inf
            self._say(f"{headline}; after {timeout:g} s this ends the job", wait.channel.ranks, records)

    def _give_up(self, reason: str, speaks: bool, records: Records) -> None:
        """Ends the job if it is this rank that speaks, or if the one that does has not done so for a while."""
        now = time.monotonic()
        if self._hopeless is None or self._hopeless[0] != reason:
            self._hopeless = reason, now
        if speaks or now - self._hopeless[1] > 2 * _PATIENCE:
            self._end_job(reason, records)

    def _end_job(self, reason: str, records: Records) -> None:
        self._say(f"{reason}; the job is ended", range(self._board.size), records)
        bootstrap.abort(1)

    def _say(self, headline: str, ranks: Iterable[int], records: Records) -> None:
        text = describe_ranks(ranks, records, time.monotonic(), _OWN_CODE)
        # One write, so that it is not mixed with what other ranks say.
        sys.stderr.write(f"ddp watchdog: {headline}\n{text}\n")
        sys.stderr.flush()


def _speaker(own: Waiting, records: Records) -> int:
    """The lowest rank that waits for the same."""
    return min(
        rank
        for rank, record in records.items()
        if record.waiting is not None and record.waiting[:2] == own[:2] and not record.ended
    )


def _own_record(ended: str) -> Record:
    wait = progress.current_wait()
    waiting = None
    if wait is not None:
        channel = wait.channel
        waiting = Waiting(
            channel.name, wait.number, wait.label, wait.since, channel.ranks, channel.timeout, channel.anybody
        )
    contributed = {name: channel.contributed for name, channel in progress.channels.copy().items()}
    return Record(time.monotonic(), contributed, waiting, _stack_of_main_thread(), ended)


def _parse(text: bytes) -> Record:
    beat, contributed, waiting, stack, ended = json.loads(text)
    if waiting is not None:
        waiting = Waiting(*waiting)._replace(ranks=tuple(waiting[4]))
    return Record(beat, contributed, waiting, tuple(Place(*place) for place in stack), ended)


def _stack_of_main_thread() -> tuple[Place, ...]:
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    places: list[Place] = []
    while frame is not None and len(places) < _FRAMES:
        places.append(Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(places))


_watchdog: Watchdog | None = None


def start(comm: "MPI.Intracomm") -> None:
    """Collective: watch over this process."""
    global _watchdog
    _watchdog = Watchdog(comm)


def stop(ended: str = "has left the process group") -> None:
    """Stop watching, and let the others know why; nothing happens where nobody watches."""
    global _watchdog
    if _watchdog is not None:
        _watchdog.stop(ended)
        _watchdog = None


# Registered when this is imported, so that it runs after what programs register themselves, which may communicate.
atexit.register(stop, "has ended")
