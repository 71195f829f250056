"""The world of a process whose ranks may be lost (`ddprun --elastic`): entering it, and going on with those that live.

Which error comes out of a wait for a lost rank does not matter: `ddp.job.recovery` asks here whether ranks were lost,
and nobody else catches it.
"""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import TYPE_CHECKING, cast

from ddp.losses import calls, deadlock, nursery, pmix, words
from ddp.losses.meanwhile import meanwhile
from ddp.losses.noise import filter_noise
from ddp.losses.options import RANKS, in_reserve
from ddp.losses.watch import Watch
from ddp.losses.words import Member

if TYPE_CHECKING:
    from mpi4py import MPI

_PATIENCE = 5.0  # seconds in which the thread hears of a death of which MPI has told, as by an error
_DETECTION = 0.2  # the same in a thread of a busy machine, where any error may come of what was broken off
_UNTOLD = 0.1  # seconds after which MPI is told of an end: it should have heard of it from its launcher
_LOOK = 0.002  # seconds between looks at what MPI knows

_watch: Watch | None = None
_happened = False
_met = 0  # processes that have come since this one did
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
    hosts = home.allgather((os.uname().nodename, node.size))
    if any(hosts.count(each) != each[1] for each in hosts):
        problem = "several of its hosts have the same name, so nobody knows which processes are where"
    elif node.size < home.size and in_reserve():
        problem = "its ranks are on several hosts, where those that are lost are not replaced; say --elastic MIN"
    node.Free()
    if not hasattr(MPI.Comm, "Revoke"):
        problem = "this MPI has no fault tolerance (ULFM), which Open MPI 5 has; use --max-restarts"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        problem = "MPI does not allow a thread beside the main one (no MPI_THREAD_MULTIPLE)"
    if not hasattr(os, "pidfd_open"):
        problem = "a rank's process cannot be watched on this system (Linux can)"
    if problem:
        raise RuntimeError(f"init_process_group: the job was started with --elastic, but {problem}")
    words.job_folder()  # which nobody may lack when a rank is lost
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
    _watch = Watch(nursery.come(), _number)


def ranks() -> int:
    """How many ranks there are to be, where those that are lost are replaced."""
    assert _ranks
    return _ranks


def own_number() -> int:
    """Of the rank that this process was started as, or replaces."""
    return _number


def met() -> int:
    """How many processes have come since this one did."""
    return _met


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


def reason(member: Member) -> str:
    """Why one was lost, as far as this process knows; else empty."""
    return words.reason(member) if _watch is None else _watch.reason(member)


def tells_of_loss(error: "MPI.Exception") -> bool:
    """Whether MPI says by this error that a rank is lost, which others see to."""
    if _watch is None:
        return False
    from mpi4py import MPI

    return error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


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
    assert _watch is not None
    before = _watch
    _meet(before)
    _admit(before)
    if _watch.problem is not None:
        raise _watch.problem
    deadlock.end()
    if _watch.noticed.is_set():  # again, meanwhile
        deadlock.begin()
    left = {member.process for member in _watch.members}
    lost = [place for place, member in enumerate(before.members) if member.process not in left]
    of_ranks = [before.members[place] for place in lost if place in before.working]
    return of_ranks, [before.members[place] for place in lost if place not in before.working]


def _meet(before: Watch) -> None:
    """Watches over those who are left from now on."""
    global _watch, _happened
    _happened = True
    from mpi4py import MPI

    before.noticed.wait(_PATIENCE)
    # Communicators are made in the order of those that they are made from. Where that has failed, Open MPI 5.0 takes it
    # for unfinished, and later ones wait for it, until one is made that comes before: from the first there is.
    MPI.COMM_SELF.Dup().Free()
    with _told_of_ends(before):
        left = before.home.Shrink()
    before.end()
    _watch = Watch(cast("MPI.Intracomm", left), _number, before)


@contextlib.contextmanager
def _told_of_ends(watch: Watch) -> Iterator[None]:
    """MPI is told, in the block, of those that end meanwhile, if it is not by its launcher."""

    def tell(over: threading.Event) -> None:
        told: set[Member] = set()
        while not over.wait(_UNTOLD):
            for member in watch.ended() - told:
                pmix.tell_of_end(member.name)
                told.add(member)

    with meanwhile(tell, "ddp ends"):
        yield


def _admit(before: Watch) -> None:
    """Lets in who was started anew, if one of those who are left brings it."""
    global _watch, _met
    assert _watch is not None
    if not in_reserve() or not _all_live(_watch) or _watch.bringing is None:
        return
    everybody = nursery.admit(_watch.home, _watch.bringing)
    if everybody is None:
        _watch.interrupt()  # as if one had been lost in the meeting that comes now
        return
    _met += 1
    _watch.end()
    _watch = Watch(everybody, _number, before)


def _all_live(watch: Watch) -> bool:
    """Collective: whether none has been lost since the watch began, with the same answer everywhere.

    Also where it could not begin, which others may not know: who left it out would be in another agreement than they.
    """
    try:
        return bool(watch.home.Agree(watch.problem is None and not watch.noticed.is_set()))
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
