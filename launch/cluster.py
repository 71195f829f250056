"""Where ranks can run: the hosts of a hostfile or of a Slurm job, and the cores of this machine."""

import math
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launch import LaunchError

# What mpirun may hand to ssh: no option, no list, nothing that a shell reads.
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Machine(NamedTuple):
    """What this process may use of the machine it runs on."""

    cores: int  # physical cores: a core's second hardware thread adds little to arithmetic
    whole: bool  # every CPU, all the time; only then is it known which cores a rank can be bound to
    limit: str = ""  # what leaves this process fewer cores than there are, in words


class Host(NamedTuple):
    """A machine that takes ranks. `name` is empty where mpirun finds it by itself."""

    name: str
    slots: int  # ranks it takes before it counts as oversubscribed
    cores: int


def this_machine(root: Path = Path("/")) -> Machine:
    """The cores that the affinity mask and the control groups leave to this process; `root` holds proc and sys."""
    mask = os.sched_getaffinity(0)
    cores = len({_core(cpu, root) for cpu in mask})
    quota = cpu_quota(root)
    if quota < cores:
        return Machine(cores=max(1, math.floor(quota)), whole=False, limit=f"control group: {quota:g} CPUs")
    if len(mask) != os.cpu_count():
        return Machine(cores, whole=False, limit=f"affinity mask: {len(mask)} of {os.cpu_count()} CPUs")
    return Machine(cores, whole=True)


def _core(cpu: int, root: Path) -> str:
    """The core of a CPU, as the list of CPUs that share it."""
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return siblings.read_text() if siblings.is_file() else str(cpu)


def cpu_quota(root: Path = Path("/")) -> float:
    """CPU seconds per second that the control groups (version 1 or 2) allow this process; infinite without a limit."""
    groups = root / "proc/self/cgroup"
    quota = math.inf
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        group = top / path.lstrip("/")
        # A container may see its own group as the top: folders that are not there are passed over.
        for folder in (group, *group.parents):
            quota = min(quota, _quota_of(folder))
            if folder == top:
                break
    return quota


def _quota_of(folder: Path) -> float:
    """The limit written in one control group's folder."""
    if (limit := folder / "cpu.max").is_file():
        allowed, period = limit.read_text().split()
    elif (limit := folder / "cpu.cfs_quota_us").is_file():
        allowed, period = limit.read_text().strip(), (folder / "cpu.cfs_period_us").read_text().strip()
    else:
        return math.inf
    return math.inf if allowed in ("max", "-1") else int(allowed) / int(period)


def read_hostfile(path: Path, machine: Machine) -> tuple[Host, ...]:
    """The hosts of a file with one `name`, `name slots=N` or `name:N` a line; `#` starts a comment.

    A name alone takes as many ranks as this machine has cores, or one for each line it stands in if there are several.
    Raises LaunchError for a file that is missing or empty and for a line that reads otherwise.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read the hostfile {str(path)!r}: {error}") from error
    stated: dict[str, list[int | None]] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = re.fullmatch(r"(?P<name>[^\s:=]+)(?:(?:\s+slots\s*=\s*|:)(?P<slots>[1-9]\d*))?", text)
        if match is None:
            raise LaunchError(
                f"hostfile {str(path)!r}, line {number}: expected 'name', 'name slots=N' or 'name:N', N at least 1, "
                f"got {text!r}"
            )
        if not re.fullmatch(_NAME, match["name"]):
            raise LaunchError(
                f"hostfile {str(path)!r}, line {number}: {match['name']!r} cannot be the name of a host, which has "
                "letters, digits, '.', '-' and '_' and begins with none of the last three; nothing else is given to ssh"
            )
        stated.setdefault(match["name"], []).append(int(match["slots"]) if match["slots"] else None)
    if not stated:
        raise LaunchError(f"the hostfile {str(path)!r} names no host; expected a line 'name slots=N' for each")
    return tuple(_host(name, slots, machine) for name, slots in stated.items())


def _host(name: str, stated: list[int | None], machine: Machine) -> Host:
    slots = machine.cores if stated == [None] else sum(1 if one is None else one for one in stated)
    # How many cores another host has cannot be asked before mpirun is there: as many as here, or as it takes ranks.
    return Host(name, slots, cores=machine.cores if _is_here(name) else max(slots, machine.cores))


def _is_here(name: str) -> bool:
    own = socket.gethostname()
    return name in {"localhost", "127.0.0.1", own, own.partition(".")[0]}


def one_host(hosts: tuple[Host, ...], environ: Mapping[str, str]) -> bool:
    """Whether the ranks all are on the machine that this process runs on.

    From a login node, salloc has them on another one even where the job has one node only.
    """
    if len(hosts) > 1:
        return False
    if hosts[0].name:
        return _is_here(hosts[0].name)
    own = socket.gethostname()
    return "SLURM_JOB_ID" not in environ or environ.get("SLURMD_NODENAME") in {own, own.partition(".")[0]}


def slurm_hosts(environ: Mapping[str, str], machine: Machine) -> tuple[Host, ...]:
    """The nodes of the Slurm job this runs in, nameless because mpirun asks Slurm itself; none outside of a job."""
    tasks = environ.get("SLURM_TASKS_PER_NODE") if "SLURM_JOB_ID" in environ else None
    if tasks is None:
        return ()
    hosts: list[Host] = []
    for group in tasks.split(","):  # "2(x3),1": three nodes of two tasks each, then one of one
        match = re.fullmatch(r"(?P<slots>\d+)(?:\(x(?P<nodes>\d+)\))?", group)
        if match is None:
            raise LaunchError(f"cannot read SLURM_TASKS_PER_NODE={tasks!r}: expected something like '2(x3),1'")
        slots = int(match["slots"])
        hosts += [Host("", slots, max(slots, machine.cores))] * int(match["nodes"] or 1)
    return tuple(hosts)
