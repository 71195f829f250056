"""How it is seen that a rank is lost, and how every wait for it ends.

A thread of each rank sleeps on the processes of its host (`os.pidfd_open`). When one has ended, which is seen after 5
ms, it revokes every communicator of the world (MPI's ULFM), so that whoever is inside of MPI comes back with an error,
and stops the transports that wait in memory. Of processes on other hosts MPI knows, from its launcher, and is asked now
and then.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from ddp.losses import calls, deadlock, nursery, pmix
from ddp.losses.options import in_reserve
from ddp.losses.words import Member, Process, excuse, kill_far, reason

if TYPE_CHECKING:
    from mpi4py import MPI

_PERIOD = 20  # milliseconds between questions to MPI, of 30 µs each


class Interrupted(Protocol):
    """What waits for other ranks without MPI."""

    def interrupt(self, cause: str) -> None:
        """From now on every call raises."""
        ...


class Watch:
    """Over the processes of one world, until one of them is lost, or somebody calls. Making one is collective.

    home: their communicator. Processes that come are let in by it; after a loss it is good for agreements and to be
    shrunk only. It is not freed: Open MPI 5.0 would answer agreements of the next one that gets its number by what was
    agreed in this one. before: who watched so far.
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
        self._over = threading.Event()
        self._wake: int | None = None
        self._files: dict[int, int] = {}  # by descriptor: place in `members`
        self.members: list[Member] = [] if before is None else before.members
        self.working: list[int] = [] if before is None else before.working
        """The places of those that are ranks, by rank."""
        self.bringing: int | None = None
        """The place of who brings a new process."""
        self.far_reasons: dict[Process, str] = {} if before is None else before.far_reasons
        """Why processes of other hosts were lost, if they were, as far as it was seen from here."""
        self.problem: Exception | None = None
        """What one's end has led to before all had begun to watch: they are to be shrunk again."""
        ranks = {self.members[place].process for place in self.working}
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
        self.working = [place for place, member in enumerate(self.members) if before is None or member.process in ranks]
        self._wake = os.eventfd(0)
        self._far = not all(member.is_here for member in self.members)
        for place, member in enumerate(self.members):
            if place != home.rank and member.is_here:
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
        """Calls `free` of a communicator while the thread does not look at it.

        Not after a loss: what is on its way to it would come to the next one that gets its number (Open MPI 5.0), and
        others may have failed to make it, or to hear of its end. It costs 12 KB to keep one.
        """
        with self._lock:
            self._comms = [each for each in self._comms if each is not comm]
            if not self.noticed.is_set():
                free()

    def kill(self, ranks: list[int], why: str) -> None:
        """Ends ranks that do not come, by their numbers in this world: one that came later would be of another time."""
        places = [self.working[rank] for rank in ranks]
        for descriptor, place in self._files.items():
            if place in places:
                excuse(self.members[place], why)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for place in places:
            if not self.members[place].is_here:
                self.far_reasons[self.members[place].process] = why
                kill_far(self.members[place])

    def reason(self, member: Member) -> str:
        """Why one was lost, as far as this process knows; else empty."""
        return reason(member) or self.far_reasons.get(member.process, "")

    def untold(self) -> list[Member]:
        """Ranks whose processes have ended, of which MPI does not know: to shrink it would wait for them for ever."""
        if self.problem is not None:
            return []
        return [self.members[place] for place in sorted(self._ended().difference(self._known()))]

    def ended(self) -> set[Member]:
        """Those of this host that have."""
        return set() if self.problem is not None else {self.members[place] for place in self._ended()}

    def _known(self) -> set[int]:
        """The places of those of whom MPI knows that they have ended."""
        sys.modules["mpi4py.MPI"].COMM_SELF.Iprobe()  # MPI hears only while it is called
        failed, all_ = self.home.Get_failed(), self.home.Get_group()
        known = failed.Translate_ranks(None, all_)
        failed.Free()
        all_.Free()
        return set(known)

    def _ended(self) -> set[int]:
        """The places of those of this host that have."""
        ready = select.poll()
        for descriptor in self._files:
            ready.register(descriptor, select.POLLIN)
        alive = set(self._files.values()).difference(self._files[descriptor] for descriptor, _ in ready.poll(0))
        here = {place for place, member in enumerate(self.members) if member.is_here}
        return here - alive - {self.home.rank}

    def end(self) -> None:
        """Nobody is watched any more."""
        if self._wake is None:
            return
        self._over.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        files, self._files = self._files, {}
        for descriptor in (*files, self._wake):
            os.close(descriptor)
        self._wake = None

    def interrupt(self) -> None:
        """Every wait for others ends: all are to meet again."""
        with self._lock:
            self.noticed.set()
            deadlock.begin()
            for comm in (*self._comms, self.home):
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
            if self._far:
                known = self._known()
                with self._lock:
                    self._gone |= known
            for descriptor, _ in ready.poll(_PERIOD if self._far else None):
                if self._over.is_set():
                    return False
                if descriptor == called:
                    return True
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    ready.unregister(descriptor)
                    with self._lock:
                        self._gone.add(self._files[descriptor])
