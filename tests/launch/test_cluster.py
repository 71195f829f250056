"""Hosts, cores and control groups, read from files made for the purpose."""

import math
import os
import socket
from pathlib import Path

import pytest

from launch import LaunchError
from launch.cluster import Host, Machine, cpu_quota, one_host, read_hostfile, slurm_hosts, this_machine

FOUR_CORES = Machine(cores=4, whole=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a slots=2\nb slots=3\n", [("a", 2), ("b", 3)]),
        ("a:2\nb:3", [("a", 2), ("b", 3)]),
        ("# ours\n\n  a   slots = 2  # rack 1\n", [("a", 2)]),
        ("a\nb\n", [("a", 4), ("b", 4)]),
        ("a\na\nb\n", [("a", 2), ("b", 4)]),
        ("a:2\nb:1\na:3\n", [("a", 5), ("b", 1)]),
        ("10.0.0.7 slots=1\nnode-1.example:2", [("10.0.0.7", 1), ("node-1.example", 2)]),
    ],
)
def test_hostfile(tmp_path: Path, text: str, hosts: list[tuple[str, int]]) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    assert [(host.name, host.slots) for host in read_hostfile(path, FOUR_CORES)] == hosts


def test_cores_are_known_for_this_machine_only(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"localhost slots=9\n{socket.gethostname()} slots=9\nelsewhere slots=9\nsmall slots=1")
    assert [host.cores for host in read_hostfile(path, FOUR_CORES)] == [4, 4, 9, 4]


@pytest.mark.parametrize(
    "line", ["a slots=0", "a slots=-1", "a slots=two", "a slots", "a 2", "a:2:3", "a max_slots=2", ":2"]
)
def test_hostfile_line_that_reads_otherwise(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"good:2\n{line}\n")
    with pytest.raises(LaunchError, match="line 2: expected 'name', 'name slots=N' or 'name:N'") as error:
        read_hostfile(path, FOUR_CORES)
    assert repr(line) in str(error.value)


@pytest.mark.parametrize(
    "name", ["-F/tmp/cfg", "-oProxyCommand=x", "$(id)", "a;b", "a,evil", "a/b", "a'b", ".a", "ä", "a\x00"]
)
def test_what_ssh_might_read_otherwise_is_no_host(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"good:2\n{name} slots=2\n")
    with pytest.raises(LaunchError, match=r"line 2: (.* cannot be the name of a host|expected 'name')"):
        read_hostfile(path, FOUR_CORES)


@pytest.mark.parametrize(
    ("hosts", "environ", "one"),
    [
        ([Host("", 4, 4)], {}, True),
        ([Host(socket.gethostname(), 4, 4)], {}, True),
        ([Host("localhost", 4, 4)], {}, True),
        ([Host("elsewhere", 4, 4)], {}, False),
        ([Host("localhost", 4, 4), Host("elsewhere", 4, 4)], {}, False),
        ([Host("", 4, 4)], {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": socket.gethostname()}, True),
        ([Host("", 4, 4)], {"SLURM_JOB_ID": "7"}, False),  # on a login node
        ([Host("", 4, 4)] * 2, {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": socket.gethostname()}, False),
    ],
)
def test_one_host(hosts: list[Host], environ: dict[str, str], one: bool) -> None:
    assert one_host(tuple(hosts), environ) is one


@pytest.mark.parametrize("text", ["", "\n\n", "# nobody\n"])
def test_hostfile_without_hosts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(LaunchError, match="names no host"):
        read_hostfile(path, FOUR_CORES)


def test_hostfile_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"cannot read the hostfile .*missing.*No such file"):
        read_hostfile(tmp_path / "missing", FOUR_CORES)
    with pytest.raises(LaunchError, match="Is a directory"):
        read_hostfile(tmp_path, FOUR_CORES)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LaunchError, match="cannot read the hostfile"):
        read_hostfile(tmp_path / "binary", FOUR_CORES)


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, []),
        ({"SLURM_TASKS_PER_NODE": "2"}, []),  # outside of a job
        ({"SLURM_JOB_ID": "7"}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "8"}, [8]),
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x3),1"}, [2, 2, 2, 1]),
    ],
)
def test_slurm(environ: dict[str, str], slots: list[int]) -> None:
    hosts = slurm_hosts(environ, FOUR_CORES)
    assert [host.slots for host in hosts] == slots
    assert {host.name for host in hosts} <= {""}


def test_slurm_variable_that_reads_otherwise() -> None:
    with pytest.raises(LaunchError, match="SLURM_TASKS_PER_NODE='many'"):
        slurm_hosts({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "many"}, FOUR_CORES)


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


def test_hosts_are_values() -> None:
    assert Host("a", 1, 2) == Host("a", 1, 2)
