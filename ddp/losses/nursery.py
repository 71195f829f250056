"""The reserve is kept full: one of those that wait, the nurse, starts new processes (MPI_Comm_spawn).

Where it does so, whoever takes part hangs if the new process dies before it has come. So the nurse does it alone, in a
communicator of its own, and all meet with the new process only when that is there: `MPI_Comm_accept` among processes
that live takes some milliseconds. A nurse that hangs is killed; the next one that waits is nurse then.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddp.losses.options import SPAWNED

if TYPE_CHECKING:
    from mpi4py import MPI

_START = 120.0  # seconds that a new process takes at most to start MPI
_ENTRY = 30.0  # seconds in which all have met with it

_child: "MPI.Intercomm | None" = None  # who waits to be let in, and its process
_child_file = -1


def bring() -> None:
    """Starts one process more of this job, and returns when that waits to be let in.

    Raises MPI's Exception where none can be started.
    """
    global _child, _child_file
    from mpi4py import MPI

    info = MPI.Info.Create()
    info.Set("PMIX_ENVAR", f"{SPAWNED}=1")
    program, *arguments = sys.orig_argv
    with _or_else(_START, "a process that is to wait in reserve does not start"):
        child = MPI.COMM_SELF.Spawn(sys.executable or program, arguments, 1, info)
        pid = child.recv(source=0)
    info.Free()
    _child_file = os.pidfd_open(pid)
    _child = child


def brings() -> bool:
    """Whether this process has one that lives and waits to be let in."""
    global _child
    if _child is not None and select.select([_child_file], [], [], 0)[0]:
        os.close(_child_file)
        _child = None
    return _child is not None


def has_brought() -> bool:
    """Whether there is none of this process's that waits to be let in."""
    return _child is None


def admit(home: "MPI.Intracomm", nurse: int) -> "MPI.Intracomm":
    """Collective over the processes of `home`, with the one that their `nurse` brings: the communicator of all."""
    global _child
    from mpi4py import MPI

    with _or_else(_ENTRY, "a process that was to wait in reserve has not come in"):
        port = ""
        if home.rank == nurse:
            assert _child is not None
            port = MPI.Open_port()
            _child.send(port, 0)
        entry = home.Accept(port, root=nurse)
        everybody = entry.Merge(high=False)
        if home.rank == nurse:
            MPI.Close_port(port)
            os.close(_child_file)
            _child = None
    return _returning(everybody)


def come() -> "MPI.Intracomm":
    """The other side of `admit`, in the new process."""
    from mpi4py import MPI

    parent = MPI.Comm.Get_parent()
    parent.send(os.getpid(), 0)
    port = parent.recv(source=0)
    with _or_else(_ENTRY, "this process has not come into the reserve"):
        everybody = MPI.COMM_SELF.Connect(port).Merge(high=True)
    return _returning(everybody)


def _returning(comm: "MPI.Intracomm") -> Any:
    from mpi4py import MPI

    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return comm


@contextlib.contextmanager
def _or_else(seconds: float, words: str) -> Iterator[None]:
    """Kills this process where the block takes longer: it is inside of MPI, from where nothing else leads out."""

    def end() -> None:
        if not over.wait(seconds):
            sys.stderr.write(f"ddp: error: {words} in {seconds:g} s\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    over = threading.Event()
    threading.Thread(target=end, name="ddp nursery", daemon=True).start()
    try:
        yield
    finally:
        over.set()
