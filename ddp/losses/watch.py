"""Ranks that are lost while the others go on (`ddprun --elastic`): how that is seen, and how every wait for them ends.

A thread of each rank sleeps on the others' processes (`os.pidfd_open`). When one has ended, which is seen after 5 ms,
it revokes every communicator of the world (MPI's ULFM), so that whoever is inside of MPI comes back with an error, and
stops the transports that wait in memory. Which error comes out of a wait does not matter: `ddp.job.recovery` asks here
whether ranks were lost, and nobody else catches it.

Over one host: a process of another one cannot be watched like this.
"""

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakSet

from ddp.losses import calls, deadlock, nursery, pmix
from ddp.losses.noise import filter_noise
from ddp.losses.options import RANKS, in_reserve
from ddp.losses.words import Member, excuse

if TYPE_CHECKING:
    from mpi4py import MPI

_PATIENCE = 5.0  # seconds in which the thread hears of a death of which MPI has told, as by an error
_DETECTION = 0.2  # the same in a thread of a busy machine, where any error may come of what was broken off
_UNTOLD = 0.1  # seconds after which MPI is told of an end: it should have heard of it from its launcher
_LOOK = 0.002  # seconds between looks at what it knows
_MEETINGS = 2  # after which communicators are freed that were left


class Interrupted(Protocol):
    """What waits for other ranks without MPI."""

    def interrupt(self, cause: str) -> None:
        """From now on every call raises."""
        ...


def ranks() -> int:
    """How many ranks there are to be, where those that are lost are replaced."""
    assert _ranks
    return _ranks


class Watch:
    """Over the processes of one world, until one of them is lost, or somebody calls. Making one is collective.

    home: their communicator, which stays usable: it is only shrunk, and duplicated. before: who watched so far.
    """

    def __init__(self, home: "MPI.Intracomm", number: int, before: "Watch | None" = None) -> None:
        from ddp.losses.communicator import Communicator

        self.home = home
        self.noticed = threading.Event()
        self.interrupted: WeakSet[Interrupted] = WeakSet()
        self._lock = threading.Lock()
        self._comms: list[MPI.Intracomm] = []
        self.coming: list[int] = []
        """Process numbers of those that are on their way to work."""
        self.nurse: int | None = None
        """The process number of who starts new ones."""
        self._meeting = in_reserve() > 0  # until it is known who works, all are needed
        self._gone: set[int] = set()  # places of those that have ended
        self._ends = False
        self._wake: int | None = None
        self._files: dict[int, int] = {}  # by descriptor: place in `members`
        self.members: list[Member] = [] if before is None else before.members
        self.working: list[int] = [] if before is None else before.working
        """The places of those that are ranks, by rank."""
        self.bringing: int | None = None
        """The place of who brings a new process."""
        self.problem: Exception | None = None
        """What one's end has led to before all had begun to watch: they are to be shrunk again."""
        ranks = {self.members[place].pid for place in self.working}
        calls.forget()
        try:
            own = Member(number, os.getpid(), pmix.own_name()), nursery.brings()
            everyones = home.allgather(own)
            self.comm = Communicator(home.Dup())
        except (sys.modules["mpi4py.MPI"].Exception, UnpicklingError) as error:
            home.Revoke()  # nobody looks yet, and others may be in there; it can be shrunk all the same
            self.problem = error
            self.noticed.set()
            return
        self.comm.watch = self
        self.register(self.comm)
        self.members = [member for member, _ in everyones]
        self.bringing = next((place for place, (_, brings) in enumerate(everyones) if brings), None)
        self.working = [place for place, member in enumerate(self.members) if before is None or member.pid in ranks]
        self._wake = os.eventfd(0)
        for place, member in enumerate(self.members):
            if place != home.rank:
                try:
                    self._files[os.pidfd_open(member.pid)] = place
                except ProcessLookupError:
                    self._gone.add(place)
        self._thread = threading.Thread(target=self._run, name="ddp losses", daemon=True)
        self._thread.start()

    def work_by(self, working: list[int]) -> None:
        """From now on only these are needed: whoever else ends interrupts nobody. By their places."""
        with self._lock:
            self.working, self._meeting = working, False
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def has_ended(self, pid: int) -> bool:
        """Whether a process has, as far as was seen."""
        with self._lock:
            return any(self.members[place].pid == pid for place in self._gone)

    def register(self, comm: "MPI.Intracomm") -> None:
        """This communicator is the world's, or comes from one that is."""
        with self._lock:
            if self.noticed.is_set():
                comm.Revoke()
            self._comms.append(comm)

    def free(self, free: Callable[[], None], comm: "MPI.Intracomm") -> None:
        """Calls `free` of a communicator while the thread does not look at it."""
        with self._lock:
            self._comms = [each for each in self._comms if each is not comm]
            free()

    def kill(self, ranks: list[int], why: str) -> None:
        """Ends ranks that do not come, by their numbers in this world: one that came later would be of another time."""
        places = [self.working[rank] for rank in ranks]
        for descriptor, place in self._files.items():
            if place in places:
                excuse(self.members[place], why)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def untold(self) -> list[Member]:
        """Ranks whose processes have ended, of which MPI does not know: to shrink it would wait for them for ever."""
        if self.problem is not None:
            return []
        ready = select.poll()
        for descriptor in self._files:
            ready.register(descriptor, select.POLLIN)
        alive = set(self._files.values()).difference(self._files[descriptor] for descriptor, _ in ready.poll(0))
        ended = set(range(len(self.members))) - alive - {self.home.rank}
        with contextlib.suppress(sys.modules["mpi4py.MPI"].Exception):  # what it says of them is asked below
            self.home.Iprobe()  # MPI hears only while it is called
        failed, all_ = self.home.Get_failed(), self.home.Get_group()
        known = failed.Translate_ranks(None, all_)
        failed.Free()
        all_.Free()
        return [self.members[place] for place in sorted(ended.difference(known))]

    def end(self) -> None:
        """Nobody is watched any more."""
        if self._wake is None:
            return
        self._ends = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        files, self._files = self._files, {}
        for descriptor in (*files, self._wake):
            os.close(descriptor)
        self._wake = None

    def made(self) -> "list[MPI.Intracomm]":
        """The communicators of this time."""
        with self._lock:
            return [*self._comms, self.home]

    def interrupt(self) -> None:
        """Every wait for others ends: all are to meet again."""
        deadlock.begin()
        with self._lock:
            self.noticed.set()
            for comm in self._comms:
                comm.Revoke()
        for each in [*self.interrupted]:
            each.interrupt("the loss of a rank")

    def _run(self) -> None:
        if not self._waits():
            return
        self.interrupt()
        if in_reserve():  # for some of them it may be no loss
            calls.call([member.pid for member in self.members])

    def _waits(self) -> bool:
        """Returns when one that is needed has ended, or somebody calls; false where this was ended."""
        assert self._wake is not None
        ready = select.poll()
        called = calls.descriptor()
        for descriptor in (*self._files, self._wake, *(() if called is None else (called,))):
            ready.register(descriptor, select.POLLIN)
        while True:
            with self._lock:
                if self._gone and (self._meeting or not self._gone.isdisjoint(self.working)):
                    return True
            for descriptor, _ in ready.poll():
                if self._ends:
                    return False
                if descriptor == called:
                    return True
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    ready.unregister(descriptor)
                    with self._lock:
                        self._gone.add(self._files[descriptor])


_watch: Watch | None = None
_left: "list[list[MPI.Comm]]" = []  # communicators of earlier times
_happened = False
_number = 0
_ranks = 0


def begin(home: "MPI.Intracomm") -> "MPI.Intracomm":
    """Collective: watches over these processes from now on; returns the communicator by which the ranks talk, the first
    of them, MPI.COMM_NULL in one in reserve.

    Raises RuntimeError, on every rank, where the loss of one would not be noticed or survived.
    """
    global _watch, _number, _ranks
    from mpi4py import MPI

    problem = ""
    node = home.Split_type(MPI.COMM_TYPE_SHARED)
    if node.size < home.size:
        problem = "its ranks are on several hosts; one of them is all that is watched so far, use --max-restarts there"
    node.Free()
    if not hasattr(MPI.Comm, "Revoke"):
        problem = "this MPI has no fault tolerance (ULFM), which Open MPI 5 has; use --max-restarts"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        problem = "MPI does not allow a thread beside the main one (no MPI_THREAD_MULTIPLE)"
    if not hasattr(os, "pidfd_open"):
        problem = "a rank's process cannot be watched on this system (Linux can)"
    if problem:
        raise RuntimeError(f"init_process_group: the job was started with --elastic, but {problem}")
    filter_noise()
    if in_reserve():
        calls.listen()
    _number = home.rank
    _ranks = home.size - in_reserve()
    _watch = Watch(home, _number)
    if _watch.problem is not None:
        raise _watch.problem
    if not in_reserve():
        return _watch.comm
    comm = _watch.comm.Split(0 if home.rank < _ranks else MPI.UNDEFINED, home.rank)
    _watch.work_by([*range(_ranks)])
    return comm


def come_in() -> None:
    """Watches over the processes of the job from now on, which one of them has started this one for."""
    global _watch, _number, _ranks
    filter_noise()
    calls.listen()
    _number = _ranks = int(os.environ[RANKS])
    everybody, entry = nursery.come()
    _left.append([entry])
    _watch = Watch(everybody, _number)


def own_number() -> int:
    """Of the rank that this process was started as, or replaces."""
    return _number


def rename(number: int) -> None:
    """This process is to replace the rank of this number."""
    global _number
    _number = number


def watching() -> Watch | None:
    """What watches over the ranks of this world."""
    return _watch


def is_behind(error: Exception) -> bool:
    """Whether a rank is lost, so that an error may be nothing but that."""
    if _watch is None:
        return False
    # Of whatever class: not only ULFM's come of a loss, and what an interrupted collective has given is no pickle.
    of_talk = isinstance(error, (sys.modules["mpi4py.MPI"].Exception, UnpicklingError))
    return _watch.noticed.wait(_PATIENCE if of_talk else _DETECTION)


def untold(seconds: float) -> list[Member]:
    """After a loss: waits until MPI knows who has ended, which it does after 20 ms, or when it is told here; so long at
    most. Returns those of whom it does not know even then.
    """
    assert _watch is not None
    _watch.noticed.wait(_PATIENCE)
    began = time.monotonic()
    told: set[Member] = set()
    while (left := _watch.untold()) and time.monotonic() < began + seconds:
        if time.monotonic() > began + _UNTOLD:
            for member in set(left) - told:
                pmix.tell_of_end(member.name)
            told.update(left)
        time.sleep(_LOOK)
    return left


def shrink() -> "tuple[list[Member], list[Member]]":
    """Collective over those who live, after a loss, or a call: ranks that are lost, and processes that were none."""
    global _watch, _happened
    assert _watch is not None
    _happened = True
    before = _watch
    before.noticed.wait(_PATIENCE)
    before.end()
    _watch = Watch(cast("MPI.Intracomm", before.home.Shrink()), _number, before)
    left_behind: list[MPI.Comm] = [*before.made()]
    if _watch.bringing is not None and _all_live(_watch):
        came = nursery.admit(_watch.home, _watch.bringing)
        if came is None:
            _watch.interrupt()  # as if one had been lost in the meeting that comes now
        else:
            _watch.end()
            left_behind += [*_watch.made(), came[1]]
            _watch = Watch(came[0], _number, before)
    _leave(left_behind)
    if _watch.problem is not None:
        raise _watch.problem
    left = {member.pid for member in _watch.members}
    lost = [place for place, member in enumerate(before.members) if member.pid not in left]
    of_ranks = [before.members[place] for place in lost if place in before.working]
    return of_ranks, [before.members[place] for place in lost if place not in before.working]


def _leave(comms: "list[MPI.Comm]") -> None:
    """These are used no more. They are freed once all have met again and again: nothing is on its way in them then."""
    assert _watch is not None
    _left.append(comms)
    if _watch.problem is None:
        deadlock.end()
        while len(_left) > _MEETINGS:
            for comm in _left.pop(0):
                comm.Free()


def _all_live(watch: Watch) -> bool:
    """Collective: whether none has been lost since the watch began, with the same answer everywhere."""
    try:
        return bool(watch.home.Agree(not watch.noticed.is_set()))
    except sys.modules["mpi4py.MPI"].Exception:  # on each of them
        return False


def happened() -> bool:
    """Whether MPI would wait at its end for a rank that was lost so far, or for processes in reserve."""
    return _happened or (_watch is not None and in_reserve() > 0)


def _stop() -> None:
    """MPI ends after this, and so does everybody else."""
    global _happened
    if _watch is not None:
        _watch.end()
        _happened = _happened or _watch.noticed.is_set()


atexit.register(_stop)
