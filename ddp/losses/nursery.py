"""The reserve is kept full: one of those that wait, the nurse, starts new processes (MPI_Comm_spawn).

Where it does so, whoever takes part hangs if the new process dies before it has come. So the nurse does it alone, in a
communicator of its own, and all meet with the new process only when that is there: `MPI_Intercomm_create` among
processes that live takes some milliseconds. A nurse that hangs is killed; the next one that waits is nurse then.

`MPI_Comm_accept` would do the same, but goes by Open MPI's launcher, which has all processes fetch what is known of
all others each time, and (PMIx 5) never frees what it sends: of six processes 0.3 MB.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from ddp.losses.meanwhile import meanwhile
from ddp.losses.options import SPAWNED
from ddp.losses.processes import is_stopped, status_of

if TYPE_CHECKING:
    from mpi4py import MPI

_START = 120.0  # seconds that a new process takes at most to start MPI
_ENTRY = 120.0  # seconds in which all have met with it, with one of them that is stopped, and then lost
_NURSE = 10.0  # the same for the nurse, where the new one has ended or is stopped: without it the others go on
_LOOKS = 10  # of the nurse, each so long after the other; then it ends whatever the new one does
_WORD = 5.0  # seconds in which the new one says that it is in, after the others
_LOOK = 0.001  # seconds between looks for its word

_turn = threading.Lock()  # to call MPI

_NURSE_PLACE, _CHILD_PLACE = 0, 1  # in the communicator of the two
_TAG = 0


class _Child(NamedTuple):
    """A process that waits to be let in: its communicator with the nurse, its number, and a descriptor of it."""

    pair: "MPI.Intracomm"
    pid: int
    file: int

    def has_ended(self, within: float = 0.0) -> bool:
        """within: seconds to wait for that."""
        return bool(select.select([self.file], [], [], within)[0])

    def does_not_come(self) -> bool:
        """Whether it has ended, or is stopped."""
        return self.has_ended() or is_stopped(status_of(self.pid))


_child: _Child | None = None


def bring() -> None:
    """Starts one process more of this job, and returns when that waits to be let in.

    Raises MPI's Exception where none can be started.
    """
    global _child
    from mpi4py import MPI

    info = MPI.Info.Create()
    info.Set("PMIX_ENVAR", f"{SPAWNED}=1")
    program, *arguments = sys.orig_argv
    with _turn, _or_else(_START, "a process that is to wait in reserve does not start"):
        child = MPI.COMM_SELF.Spawn(sys.executable or program, arguments, 1, info)
        pair = child.Merge(high=False)
        pid = pair.recv(source=_CHILD_PLACE)
        child.Free()
    info.Free()
    _child = _Child(pair, pid, os.pidfd_open(pid))


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """In the block, which meets with others, this process starts no new one, for which it would wait in another thread.

    What comes for an agreement in one thread while another one is in an agreement is garbled (Open MPI 5.0: the event
    of `era_cb_fn` lies where the values of the message are copied to), and crashes whoever reads it.
    """
    with _or_else(_NURSE, "others wait for this process, and the one that it starts for the reserve does not come"):
        _turn.acquire()
    try:
        yield
    finally:
        _turn.release()


def drop() -> None:
    """Ends who waits to be let in. Where a communicator could not be made, Open MPI 5.0 may have removed another one of
    this process, which only some have, from where it looks for who gets a message (`ompi_comm_nextcid_check_flag`).
    """
    if _child is not None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(_child.file, signal.SIGKILL)
        _forget()


def _forget() -> None:
    """Nothing is to be said any more to who was started: it is in, or has ended."""
    global _child
    assert _child is not None
    os.close(_child.file)
    _child = None


def brings() -> bool:
    """Whether this process has one that lives and waits to be let in."""
    if _child is not None and _child.has_ended():
        _forget()
    return _child is not None


def has_brought() -> bool:
    """Whether there is none of this process's that waits to be let in."""
    return _child is None


def admit(home: "MPI.Intracomm", nurse: int) -> "MPI.Intracomm | None":
    """Collective over the processes of `home`, with the one that their `nurse` brings: the communicator of all.

    None, on each of them, where one was lost meanwhile: then that one comes no more.
    """
    from mpi4py import MPI

    made: MPI.Intracomm | None = None
    all_have = False
    child = _child if home.rank == nurse else None
    words = "a process that was to wait in reserve has not come in"
    with _or_else(_ENTRY, words) if child is None else _or_else(_NURSE, words, child.does_not_come):
        with contextlib.suppress(MPI.Exception):  # others tell of who was lost
            made = _let_in(home, nurse, child)
        with contextlib.suppress(MPI.Exception):  # on each of them
            all_have = bool(home.Agree(made is not None))
        if child is not None and all_have:
            with contextlib.suppress(MPI.Exception):  # that it has ended is seen when all meet
                child.pair.send(None, _CHILD_PLACE)
    if all_have and child is not None:
        _forget()
    elif child is not None:
        drop()
    return made if all_have else None


def _let_in(home: "MPI.Intracomm", nurse: int, child: _Child | None) -> "MPI.Intracomm | None":
    """None in the nurse where its `child` has not come. Raises MPI's Exception where one of `home` was lost."""
    from mpi4py import MPI

    pair = MPI.Intracomm() if child is None else child.pair
    made: list[MPI.Comm] = [home]
    try:
        if child is not None:
            pair.send(None, _CHILD_PLACE)
        entry = home.Create_intercomm(nurse, pair, _CHILD_PLACE, _TAG)
        made.append(entry)
        everybody = _returning(entry.Merge(high=False))
    except MPI.Exception:
        for comm in made:
            comm.Revoke()  # not all hear of a loss in there, and those would wait for this one
        raise
    if child is not None and not _is_in(child):
        return None
    return cast("MPI.Intracomm", everybody)


def _is_in(child: _Child) -> bool:
    """Whether it says so before long."""
    deadline = time.monotonic() + _WORD
    while not child.pair.Iprobe(source=_CHILD_PLACE):
        if child.has_ended(_LOOK) or time.monotonic() > deadline:
            return False
    child.pair.recv(source=_CHILD_PLACE)
    return True


def come() -> "MPI.Intracomm":
    """The other side of `admit`, in the new process, which ends where it does not come in."""
    from mpi4py import MPI

    try:
        pair = MPI.Comm.Get_parent().Merge(high=True)
        pair.send(os.getpid(), _NURSE_PLACE)
        pair.recv(source=_NURSE_PLACE)
        with _or_else(_ENTRY, "this process has not come into the reserve"):
            entry = _enter(pair)
            everybody = entry.Merge(high=True)
            pair.send(None, _NURSE_PLACE)
            pair.recv(source=_NURSE_PLACE)  # all others have come as far, or this process is killed
    except MPI.Exception as error:  # another one was lost, of whom others tell
        _end(f"this process has not come into the reserve: {error}")
    return cast("MPI.Intracomm", _returning(everybody))


def _enter(pair: "MPI.Intracomm") -> "MPI.Intercomm":
    from mpi4py import MPI

    return MPI.COMM_SELF.Create_intercomm(0, pair, _NURSE_PLACE, _TAG)


def _returning(comm: "MPI.Intracomm") -> Any:
    from mpi4py import MPI

    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return comm


@contextlib.contextmanager
def _or_else(seconds: float, words: str, is_so: Callable[[], bool] | None = None) -> Iterator[None]:
    """Kills this process where the block takes longer: it is inside of MPI, from where nothing else leads out.

    is_so: asked then; where it is not, the block has as long again, up to `_LOOKS` times.
    """

    def end(over: threading.Event) -> None:
        for look in range(1, _LOOKS + 1):
            if over.wait(seconds):
                return
            if is_so is None or is_so() or look == _LOOKS:
                _end(f"{words} in {look * seconds:g} s")

    with meanwhile(end, "ddp nursery"):
        yield


def _end(words: str) -> NoReturn:
    sys.stderr.write(f"ddp: {words}\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
