"""The cores of this machine that ranks may use."""

import math
import os
from pathlib import Path
from typing import NamedTuple


class Machine(NamedTuple):
    """What this process may use of the machine it runs on."""

    cores: int  # physical cores: a core's second hardware thread adds little to arithmetic
    whole: bool  # every CPU, all the time; only then is it known which cores a rank can be bound to
    limit: str = ""  # what leaves this process fewer cores than there are, in words


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
