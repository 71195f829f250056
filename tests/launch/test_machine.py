"""Cores and control groups, read from files made for the purpose."""

import math
import os
from pathlib import Path

import pytest

from launch.machine import Machine, cpu_quota, this_machine


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/\n"}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        # The strictest of the groups above counts.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
            },
            3.0,
        ),
        # In a container the path is the host's and the group is mounted at the top.
        ({"proc/self/cgroup": "0::/docker/f00\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        # Version 1.
        (
            {
                "proc/self/cgroup": "5:memory:/x\n3:cpu,cpuacct:/x\n0::/\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4.0,
        ),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    assert cpu_quota(write(tmp_path, files)) == quota


def machine_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: set[int], quota: str = "max 100000") -> Machine:
    """A machine of 4 cores with 2 hardware threads each, numbered as Linux does: 0 and 4 share a core."""
    files = {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}" for n in range(8)}
    files |= {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mask)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return this_machine(write(tmp_path, files))


@pytest.mark.parametrize(
    ("mask", "quota", "machine"),
    [
        (set(range(8)), "max 100000", Machine(cores=4, whole=True)),
        (set(range(8)), "400000 100000", Machine(cores=4, whole=True)),
        (set(range(8)), "250000 100000", Machine(cores=2, whole=False, limit="control group: 2.5 CPUs")),
        (set(range(8)), "50000 100000", Machine(cores=1, whole=False, limit="control group: 0.5 CPUs")),
        ({0, 4}, "max 100000", Machine(cores=1, whole=False, limit="affinity mask: 2 of 8 CPUs")),
        ({0, 1, 2}, "max 100000", Machine(cores=3, whole=False, limit="affinity mask: 3 of 8 CPUs")),
    ],
)
def test_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: set[int], quota: str, machine: Machine) -> None:
    assert machine_with(tmp_path, monkeypatch, mask, quota) == machine


def test_machine_without_topology_counts_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert this_machine(tmp_path) == Machine(cores=3, whole=True)


def test_this_machine_is_within_its_mask() -> None:
    assert 1 <= this_machine().cores <= len(os.sched_getaffinity(0))
