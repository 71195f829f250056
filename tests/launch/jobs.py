"""What tests of whole jobs share: processes by number, waiting for what comes about, the text of scripts."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launch.argv import Mpi
from launch.find import find_mpirun, identify
from launch.testing.process import ask_to_end_with_parent

LIMIT = 60  # seconds, met by a hang only

# Every rank writes its process id to a file before anything else, and one that waits waits for the others in MPI.
PIDS = "import os, pathlib; pathlib.Path(f'pid.{os.getpid()}').touch()\n"
WAIT = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n"


def this_mpi() -> Mpi:
    """What ddprun will find."""
    return identify(find_mpirun(sys.executable, os.environ["PATH"]))[0]


def code_of_lost_rank(code: int) -> int:
    """This mpirun's exit code of a job of which a rank ended without a word, by this code; 128 + N: by signal N."""
    return {"Open MPI": code, "MPICH": code - 128 if code > 128 else code, "Intel MPI": 255}[this_mpi().name]


def as_from_a_terminal() -> None:
    """In the background, or under nohup, signals are ignored, and children inherit that. And pytest may be killed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    ask_to_end_with_parent()


def pids(folder: Path) -> list[int]:
    return [int(path.suffix[1:]) for path in folder.glob("pid.*")]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def words_of(pid: int) -> list[str]:
    """Of a process's command line; one empty word where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def running(folder: Path) -> list[int]:
    return [pid for pid in pids(folder) if is_running(pid)]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guard_of(ddprun: int) -> int:
    """The child of ddprun that watches over this host; 0 while there is none."""
    return next((pid for pid in children_of(ddprun) if "guard.py" in "".join(words_of(pid))), 0)


def mpirun_of(ddprun: int) -> int:
    """The other one."""
    return next(pid for pid in children_of(ddprun) if pid != guard_of(ddprun))


def wait_until(condition: Callable[[], bool], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def names(folder: Path) -> set[str]:
    """The files in a folder."""
    return set(os.listdir(folder))
