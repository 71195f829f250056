"""A rank that waits too long for the others says whom it waits for and where those are; when that is hopeless, it ends
the job.

A thread on every rank looks twice a second at what its main thread does (`ddp.watching.progress`) and writes it, with
the Python stack, to a page that all ranks can read (`ddp.watching.board`). When its own main thread has waited for a
while it reads the others' pages:

* A rank that is waited for **has ended** (`sys.exit` on one rank only, say): the job is ended.
* Ranks **wait for one another**, in different collectives, a bucket of gradients or messages: the job is ended.
* **A host is lost**: none of its ranks was heard of for a minute (`init_process_group(host_timeout=...)`), and its
  kernel does not acknowledge what is sent to it (`ddp.watching.sockets`). It is named; the job is ended or goes on, as
  asked.
* **Soft timeout**: after a minute, or half the group's timeout if that is less, it prints who is late, in which
  collective or bucket, and the Python stack there; then again whenever the time has doubled.
* **Hard timeout**, that of the group (`init_process_group(timeout=...)`, 30 minutes): the same, and the job is ended.

Where the job goes on without lost ranks (`ddprun --elastic`), those that will not come are lost, and of ranks that wait
for one another one is, before the job is ended.

Of all that wait for the same and answer, the lowest rank speaks. The hot path writes two Python attributes a collective
(or bucket).

It watches from `init_process_group` to the end of the process. There the ranks wait for one another before MPI ends,
for as long as those that are late do something: who does not answer is given the default group's timeout. What comes
before it is watched by `ddp.watching.starting`.
"""

import atexit
import math
import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ddp import losses
from ddp.watching import progress, standstill
from ddp.watching.board import PAGE_TEXT, Board
from ddp.watching.progress import DEFAULT_TIMEOUT, Channel, begin_wait, end_wait
from ddp.watching.record import Record, Records, Waiting, all_contributed, own_record, parse, to_text
from ddp.watching.sockets import unacknowledged
from ddp.watching.telling import PATIENCE, SOFT, Teller
from ddp.watching.verdict import (
    describe_awaited,
    describe_gone,
    describe_lost,
    describe_wait,
    gone_ranks,
    late_ranks,
    silent_ranks,
    speaker,
    stuck_ranks,
)
from ddp.world.ranks import name_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

_PERIOD = 0.5  # seconds between looks; one costs 10 µs, and 6 µs for each page that is read
_SILENT = 3.0  # seconds without an answer, which another node's rank may take to read its page; more are told
_END = 0.01  # seconds between looks whether all ranks have come to the end


class Lost(NamedTuple):
    """What is to happen when a host is lost: after so many seconds, and whether the job is ended."""

    after: float
    ends: bool


class Watchdog:
    """See the module. Making one is collective. comm: the world, which is duplicated."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self._comm = comm.Dup()
        self._end = Channel("the end of the job", tuple(range(comm.size)))
        self.rank = comm.rank
        self.lost = Lost(SOFT, True)
        self.timeout = DEFAULT_TIMEOUT
        whereabouts = comm.allgather((socket.gethostname(), os.getpid()))
        self._hosts = [host for host, _ in whereabouts]
        self._board = Board(self._comm)
        self._teller = Teller(self.rank, self._hosts, [whereabouts[rank][1] for rank in self._board.neighbours])
        self._process = os.getpid()
        self._next_look = 0.0
        self._told_lost: set[str] = set()
        self._left: tuple[str, dict[str, int]] | None = None  # why nothing comes from here, and what had come
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddp watchdog", daemon=True)
        self._publish()
        self._thread.start()

    def leave(self, ended: str) -> None:
        """This rank contributes nothing any more; `ended` says why, as in `Record`."""
        contributed = self._left[1] if self._left is not None else all_contributed()
        self._left = ended, contributed
        self._publish()

    def come_back(self) -> None:
        """Before the world is entered again."""
        self._left = None
        self._publish()

    def watches(self, comm: "MPI.Intracomm") -> bool:
        """Whether its ranks are those of `comm`, in this order."""
        from mpi4py import MPI

        return MPI.Comm.Compare(comm, self._comm) == MPI.CONGRUENT

    def retire(self) -> None:
        """This rank enters a world of other ranks. Waits for nobody; what was the world's end does not wait for it."""
        self.leave("has left the process group")
        self.stop()
        _retired.append(self._comm.Ibarrier())

    def stop(self) -> None:
        """Nobody looks any more."""
        self._stop.set()
        self._thread.join()

    def end(self) -> None:
        """Returns when all ranks have called it: whoever ends first is to be seen by the others until then."""
        from mpi4py import MPI

        if os.getpid() != self._process or MPI.Is_finalized():  # a child of ours; or the user's own end of MPI
            return
        self.leave("has ended")
        begin_wait(self._end, self._end.contribute(), "the end of the job")
        try:
            everybody = self._comm.Ibarrier()
            while not everybody.Test():
                time.sleep(_END)
        except MPI.Exception as error:
            if not losses.is_behind(error):
                raise
        end_wait()
        self.stop()
        self._board.close()

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD):
            self._publish()
            wait, now = progress.current_wait(), time.monotonic()
            if wait is None or not wait.channel.ranks or now - wait.since < PATIENCE:
                self._next_look = 0.0
                self._board.forget()
                continue
            if (watch := losses.watching()) is not None:
                standstill.look(watch.members)
            if now > self._next_look:
                # Who waits for minutes need not look twice a second: on many ranks a look takes a while.
                self._next_look = now + min((now - wait.since) / 10, 5.0)
                self._look_at_the_end(wait) if wait.channel is self._end else self._look_into(wait)

    def _publish(self) -> None:
        self._board.write(to_text(own_record(self._left), PAGE_TEXT))

    def _read(self, ranks: Iterable[int]) -> dict[int, Record]:
        records = {rank: parse(text) for rank in ranks if (text := self._board.read(rank)) is not None}
        for rank in records.keys() - self._board.neighbours:
            # Another node has another clock: what counts is for how long it has been asked in vain.
            records[rank] = records[rank]._replace(beat=time.monotonic() - self._board.silence(rank))
        return records

    # --- when it has waited for a while -------------------------------------------------------------------------------

    def _look_into(self, wait: progress.Wait) -> None:
        records = self._read(self._board.neighbours)
        own = records[self.rank].waiting
        if own is None or own.since != wait.since:
            return  # it has gone on meanwhile
        speaks = self.rank == speaker(own, records, time.monotonic())
        known = records
        if speaks:
            far = [rank for rank in self._board.others if rank not in records]
            self._board.ask(far)
            # Of what was read before this wait nothing follows: a rank may have left the world then, and be back.
            records = records | self._read(rank for rank in far if self._board.answered(rank) > own.since)
            known = self._read(far) | records
            if self._tell_lost(known):
                return
            if any(rank not in records and self._board.silence(rank) < _SILENT for rank in far):
                return  # their answers are on their way
            speaks = self.rank == speaker(own, records, time.monotonic())
        now = time.monotonic()
        gone, stuck = gone_ranks(own, records), stuck_ranks(records)
        if self._lose(own, gone, records, now):
            return
        if gone:
            self._teller.give_up(describe_gone(own, gone, records), speaks, known)
        elif self.rank in stuck:
            reason = f"{name_ranks(stuck)} wait for each other, and that would never end"
            self._teller.give_up(reason, self.rank == stuck[0], known)
        else:
            self._teller.hope()
            whom = describe_awaited(own, known, now)
            headline = f"rank {self.rank} has been waiting in {describe_wait(own, now)}, for {whom}"
            if now - own.since > own.timeout + (0 if speaks else 2 * PATIENCE):
                reason = f"{headline}; that is longer than the timeout of {own.timeout:g} s"
                self._teller.give_up(reason, True, known)
            elif speaks:
                ends = f"after {own.timeout:g} s this ends the job"
                self._teller.report(wait, now - own.since, own.timeout, f"{headline}; {ends}", own.ranks, known)

    def _look_at_the_end(self, wait: progress.Wait) -> None:
        """All that this rank does any more is to wait for the others' ends."""
        others = [rank for rank in range(self._board.size) if rank != self.rank]
        self._board.ask(self._board.others)
        known, now = self._read(range(self._board.size)), time.monotonic()
        if self._tell_lost(known):
            return
        silent = [rank for rank in others if rank in known and now - known[rank].beat > _SILENT]
        if (watch := losses.watching()) is not None:
            stopped = [rank for rank in silent if now - known[rank].beat > self.lost.after]
            watch.kill(stopped, f"no answer for {self.lost.after:g} s")
        ended = [rank for rank, record in known.items() if record.ended and rank not in silent]
        if not silent or self.rank != min(ended, default=-1):
            return
        seconds = max(now - known[rank].beat for rank in silent)
        headline = (
            f"nothing is heard of {name_ranks(silent)} for {seconds:.0f} s (stopped, or in code that holds the GIL), "
            f"and rank {self.rank} has ended and waits"
        )
        if seconds > self.timeout:
            self._teller.end_job(f"{headline}; that is longer than the timeout of {self.timeout:g} s", known)
        else:
            ends = f"after {self.timeout:g} s this ends the job"
            self._teller.report(wait, seconds, self.timeout, f"{headline}; {ends}", silent, known)

    def _tell_lost(self, known: Records) -> bool:
        """Names hosts of which nothing is heard. Returns whether the job is ended for that."""
        silences: dict[str, float] = {}
        for rank, host in enumerate(self._hosts):
            if rank not in self._board.neighbours:
                silences[host] = min(self._board.silence(rank), silences.get(host, math.inf))
        self._told_lost &= {host for host, seconds in silences.items() if seconds > self.lost.after}
        hosts = [host for host, seconds in silences.items() if seconds > self.lost.after]
        if not hosts or (not self.lost.ends and self._told_lost.issuperset(hosts)):
            return False
        addresses = unacknowledged(self.lost.after / 2)
        if addresses == []:
            return False  # their kernels are alive
        members = {host: [rank for rank, name in enumerate(self._hosts) if name == host] for host in hosts}
        seconds = min(silences[host] for host in hosts)
        reason = describe_lost(members, self._hosts[self.rank], seconds, addresses or ())
        if self.lost.ends:
            self._teller.end_job(reason, known)
            return True
        self._told_lost.update(hosts)
        self._teller.say(f"{reason}; the job goes on, as asked", range(self._board.size), known)
        return False

    def _lose(self, own: Waiting, gone: list[int], records: Records, now: float) -> bool:
        """Where the job can go on without ranks that will not come (they have ended, are stopped, or late for longer
        than the timeout), these are killed: then they are lost. Returns whether some were.
        """
        watch = losses.watching()
        if watch is None:
            return False
        silent = [rank for rank in silent_ranks(own, records, now) if now - records[rank].beat > self.lost.after]
        # Of other nodes: asked in vain for so long, by a kernel that answers (`_tell_lost`).
        far = {*own.ranks}.intersection(self._board.others).difference(silent)
        silent += [rank for rank in far if self._board.silence(rank) > self.lost.after]
        late = late_ranks(own, records) if now - own.since > own.timeout else []
        watch.kill(gone, "has ended, and was waited for")
        watch.kill(silent, f"stopped, or in code that holds the GIL: no answer for {self.lost.after:g} s")
        watch.kill(late, f"late by more than the timeout of {own.timeout:g} s")
        return bool(gone or silent or late)


_watchdog: Watchdog | None = None
_limits: tuple[float, Lost] | None = None
"""The timeout of the group, and what is to happen when a host is lost, as they were last said."""
_retired: "list[MPI.Request]" = []  # kept to the end of MPI


def start(comm: "MPI.Intracomm | None", timeout: float, lost: Lost) -> None:
    """Watch over this process; collective where nobody has done so yet among these ranks. timeout: of the group.

    comm: None where there is nobody else so far.
    """
    global _watchdog, _limits
    _limits = timeout, lost
    if comm is None:
        return
    if _watchdog is not None and not _watchdog.watches(comm):
        _watchdog.retire()
        _watchdog = None
    if _watchdog is None:
        _watchdog = Watchdog(comm)
    _watchdog.timeout, _watchdog.lost = timeout, lost


def start_anew(comm: "MPI.Intracomm") -> None:
    """Collective: watch over the ranks that go on, when some were lost or have come."""
    global _watchdog
    assert _limits is not None
    if _watchdog is not None:
        _watchdog.stop()
    _watchdog = Watchdog(comm) if comm.size > 1 else None
    if _watchdog is not None:
        _watchdog.timeout, _watchdog.lost = _limits


def host_timeout() -> float:
    """Seconds without an answer after which a rank is not waited for any more."""
    assert _limits is not None
    return _limits[1].after


def group_timeout() -> float:
    """Seconds that a rank waits for others before the job is ended."""
    assert _limits is not None
    return _limits[0]


def come_back() -> None:
    """Before the world is entered again: this rank counts from now on."""
    if _watchdog is not None:
        _watchdog.come_back()


def leave() -> None:
    """This rank has left the process group, and the others are to know."""
    if _watchdog is not None:
        _watchdog.leave("has left the process group")


def _end() -> None:
    if _watchdog is not None:
        _watchdog.end()


# Registered when this is imported, so that it runs after what programs register themselves, which may communicate.
atexit.register(_end)
