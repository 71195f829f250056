"""Ending what belongs to a job on this host when another host may be lost.

MPI_Abort does not suffice then: the launcher's daemon waits for that of the lost host, and the kernel gives up sending
to it after a quarter of an hour. So a process outside the job looks after a while what is left, and kills it.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ddp.losses.processes import PARENT, STARTED, status_of

_GRACE = 8.0  # seconds for the launcher's own end
_DAEMONS = ("prterun", "mpirun", "prted", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy")

_PROGRAM = """
import os, signal, sys, time

def started(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None

known = [word.split(":") for word in sys.argv[2:]]
deadline = time.monotonic() + float(sys.argv[1])
while left := [int(pid) for pid, when in known if started(pid) == when]:
    if time.monotonic() > deadline:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        break
    time.sleep(0.1)
"""


def end_this_host(ranks: Iterable[int]) -> None:
    """Have these processes of ranks on this host killed in a few seconds, and the daemon of Open MPI that started them.

    Linux only: elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    found = [(pid, status_of(pid)) for pid in (*_daemons(), *ranks)]
    words = [f"{pid}:{fields[STARTED]}" for pid, fields in found if fields]
    subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _PROGRAM, str(_GRACE), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _daemons() -> list[int]:
    """Of the processes above this one."""
    found, pid = [], os.getppid()
    while pid > 1 and (fields := status_of(pid)):
        if Path(f"/proc/{pid}/comm").read_text().strip() in _DAEMONS:
            found.append(pid)
        pid = int(fields[PARENT])
    return found
