"""What Linux says about this process and its machine. `root` holds proc, sys and dev."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TOP = Path("/")
_LOOK = 0.5  # seconds in which the use of CPUs is measured


def usable_cpus() -> frozenset[int]:
    """The CPUs that this process could be given, whatever its mask: those that its control group leaves it.

    Asked by widening the mask for a moment, which the kernel cuts to what is allowed.
    """
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(8192))
        return frozenset(os.sched_getaffinity(0))
    except OSError:  # a sandbox that forbids it
        return frozenset(mask)
    finally:
        os.sched_setaffinity(0, mask)


class Use(NamedTuple):
    """How much of some CPUs is taken, in CPUs."""

    busy: float
    """By processes of this machine."""
    stolen: float
    """By other machines on the same hardware (steal of /proc/stat)."""


def use_of(cpus: Iterable[int], seconds: float = _LOOK, root: Path = TOP) -> Use:
    """Of these CPUs, while this process sleeps for so long; nothing where Linux does not tell."""
    before = _cpu_times(cpus, root)
    began = time.monotonic()
    time.sleep(seconds)
    after = _cpu_times(cpus, root)
    ticks = (time.monotonic() - began) * os.sysconf("SC_CLK_TCK")
    return Use(*((later - earlier) / ticks for earlier, later in zip(before, after, strict=True)))


def _cpu_times(cpus: Iterable[int], root: Path) -> tuple[int, int]:
    """Clock ticks that these CPUs were busy and stolen, since the start."""
    path = root / "proc/stat"
    lines = path.read_text().splitlines() if path.is_file() else []
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = stolen = 0
    for name, *ticks in (line.split() for line in lines if line.startswith("cpu")):
        if name in wanted:
            user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])  # between are idle and iowait
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy, stolen


def core_of(cpu: int, root: Path = TOP) -> int:
    """The lowest of the CPUs (hardware threads) that share a core with this one."""
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    if not siblings.is_file():
        return cpu
    return int(siblings.read_text().replace("-", ",").split(",")[0])


def cpu_quota(root: Path = TOP) -> float:
    """CPU seconds per second that the control groups allow this process; infinite without a limit."""
    quota = math.inf
    for folder in _control_groups("cpu", root):
        if (limit := folder / "cpu.max").is_file():
            allowed, period = limit.read_text().split()
        elif (limit := folder / "cpu.cfs_quota_us").is_file():
            allowed, period = limit.read_text().strip(), (folder / "cpu.cfs_period_us").read_text().strip()
        else:
            continue
        if allowed not in ("max", "-1"):
            quota = min(quota, int(allowed) / int(period))
    return quota


def available_memory(root: Path = TOP) -> int:
    """Bytes that new arrays of all processes here can take: what is free, or what the control groups have left."""
    lines = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    for folder in _control_groups("memory", root):
        for limit, usage, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            if (folder / limit).is_file() and (folder / usage).is_file():
                text = (folder / limit).read_text().strip()
                if text != "max":
                    used = int((folder / usage).read_text()) - _statistic(folder, reclaimable)
                    available = min(available, max(int(text) - used, 0))
    return available


def free_shared_memory(root: Path = TOP) -> float:
    """Bytes free in /dev/shm; infinite where there is none, for MPI takes another folder then."""
    place = root / "dev/shm"
    if not place.is_dir():
        return math.inf
    free = os.statvfs(place)
    return free.f_bavail * free.f_frsize


def _statistic(folder: Path, name: str) -> int:
    """A number of memory.stat; file pages that nobody uses are given up for arrays."""
    path = folder / "memory.stat"
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group (version 1 or 2) and of those around it, the innermost first."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):  # a container may see its own group as the top, at another path
            yield folder
            if folder == top:
                break


def cpu_model(root: Path = TOP) -> str:
    """What the CPU is called; its architecture where it has no name."""
    path = root / "proc/cpuinfo"
    lines = path.read_text().splitlines() if path.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, os.uname().machine)


def kernel_identity(root: Path = TOP) -> str:
    """Equal in all containers of one machine; empty where it is hidden."""
    path = root / "proc/sys/kernel/random/boot_id"
    return path.read_text().strip() if path.is_file() else ""


def loaded_library(prefix: str, root: Path = TOP) -> str:
    """The path of a shared library that this process has loaded, by the beginning of its name; empty if none is."""
    for line in (root / "proc/self/maps").read_text().splitlines():
        path = line.partition("/")[1:]
        if "".join(path).rpartition("/")[2].startswith(prefix):
            return "".join(path)
    return ""


def has_nvidia_gpu(root: Path = TOP) -> bool:
    """Whether NVIDIA's driver is loaded and has found something."""
    return (root / "dev/nvidia0").exists() or (root / "proc/driver/nvidia/gpus").is_dir()
