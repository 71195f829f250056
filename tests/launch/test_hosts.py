"""Hosts: of a file, of a word, of the jobs of batch systems."""

import socket
from pathlib import Path

import pytest

from launch import LaunchError
from launch.hosts import Found, Host, find_hosts, one_host, read_hostfile
from launch.machine import Machine

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
        ("a slots=2 max_slots=4\nb slots=1 maxslots=1\n", [("a", 2), ("b", 1)]),
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
    "line",
    ["a slots=0", "a slots=-1", "a slots=two", "a slots", "a 2", "a:2:3", "a max_slots=0", "a:2 max=3", ":2"],
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


def found(environ: dict[str, str], hostfile: Path | None = None, listed: str | None = None) -> Found:
    return find_hosts(hostfile, listed, environ, FOUR_CORES)


def slots(what: Found) -> list[tuple[str, int]]:
    return [(host.name, host.slots) for host in what.hosts]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, []),
        ({"SLURM_TASKS_PER_NODE": "2"}, []),  # outside of a job
        ({"SLURM_JOB_ID": "7"}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "8"}, [8]),
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "2(x3),1"}, [2, 2, 2, 1]),
    ],
)
def test_slurm(environ: dict[str, str], expected: list[int]) -> None:
    assert slots(found(environ)) == [("", count) for count in expected]  # mpirun asks Slurm for the names itself


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n[01-04,7],m", "n01"), ("gpu-a3", "gpu-a3"), ("r1n[3]-ib,r2n1", "r1n3-ib"), ("a,b", "a"), ("", "")],
)
def test_the_first_node_of_a_slurm_job(nodes: str, first: str) -> None:
    job = found({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "8", "SLURM_JOB_NODELIST": nodes})
    assert (job.first, job.source) == (first, "Slurm job 7, SLURM_TASKS_PER_NODE")


def test_slurm_variable_that_reads_otherwise() -> None:
    with pytest.raises(LaunchError, match="SLURM_TASKS_PER_NODE='many'"):
        found({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "many"})


# What each batch system tells a job that has 4 slots on n1 and 2 on n2; {file} is its file with the text that follows.
BATCH_SYSTEMS = {
    "PBS": (
        {"PBS_JOBID": "9.pbs", "PBS_NODEFILE": "{file}"},
        "n1\nn1\nn2\nn1\nn1\nn2\n",
        "PBS job 9.pbs, PBS_NODEFILE",
    ),
    "LSF": ({"LSB_JOBID": "5", "LSB_DJOB_HOSTFILE": "{file}"}, "n1\n" * 4 + "n2\n" * 2, "LSF job 5, LSB_DJOB_HOSTFILE"),
    "LSF without a file": ({"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "n1 4 n2 2"}, "", "LSF job 5, LSB_MCPU_HOSTS"),
    "Grid Engine": (
        {"JOB_ID": "3", "PE_HOSTFILE": "{file}"},
        "n1 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 <NULL>\n",
        "Grid Engine job 3, PE_HOSTFILE",
    ),
}


@pytest.mark.parametrize("system", BATCH_SYSTEMS)
def test_the_hosts_of_a_batch_systems_job(tmp_path: Path, system: str) -> None:
    environ, text, source = BATCH_SYSTEMS[system]
    path = tmp_path / "nodes"
    path.write_text(text)
    job = found({name: value.format(file=path) for name, value in environ.items()})
    assert slots(job) == [("n1", 4), ("n2", 2)]
    assert (job.slots, job.source) == ("the job's slots", source)


@pytest.mark.parametrize("system", ["PBS", "LSF", "Grid Engine"])
def test_a_batch_systems_file_that_says_nothing(tmp_path: Path, system: str) -> None:
    environ, _, _ = BATCH_SYSTEMS[system]
    path = tmp_path / "nodes"
    environ = {name: value.format(file=path) for name, value in environ.items()}
    with pytest.raises(LaunchError, match=r"cannot read the batch system's list of hosts .*nodes"):
        found(environ)
    path.write_text("\n")
    with pytest.raises(LaunchError, match=f"{system} job .* names no host; name them by --hostfile or --host"):
        found(environ)
    path.write_text("-oProxyCommand=x 1\n")
    with pytest.raises(LaunchError, match="cannot be the name of a host"):
        found(environ)


def test_a_number_of_slots_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="expected a number of slots for 'n1'"):
        found({"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "n1 n2"})


def test_what_was_named_comes_before_the_batch_systems_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=3\n")
    environ = {"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "n1 4 n2 2"}
    assert slots(found(environ, hostfile=path)) == [("a", 3)]
    assert slots(found(environ, listed="b:2,c,c")) == [("b", 2), ("c", 2)]
    with pytest.raises(LaunchError, match="give one of them"):
        found(environ, hostfile=path, listed="b")


@pytest.mark.parametrize("text", ["", "a,", "a:0", "a:x", "a b", "-o,b"])
def test_a_list_of_hosts_that_reads_otherwise(text: str) -> None:
    with pytest.raises(LaunchError, match="--host"):
        found({}, listed=text)


def test_processes_are_started_by_lsf_itself_where_it_can(tmp_path: Path) -> None:
    agent = tmp_path / "blaunch"
    agent.write_text("")
    agent.chmod(0o755)
    environ = {"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "n1 4 n2 2", "PATH": str(tmp_path)}
    assert found(environ).agent == str(agent)
    assert found(environ | {"PATH": "/nowhere"}).agent == ""
    assert found(environ | {"LSB_MCPU_HOSTS": "n1 4"}).agent == ""


def test_this_host_is_known_by_its_name_with_a_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    assert [host.cores for host in found({"LSB_JOBID": "5", "LSB_MCPU_HOSTS": "n1.site 9 n2.site 9"}).hosts] == [4, 9]
    monkeypatch.setattr(socket, "gethostname", lambda: "10")
    assert [host.cores for host in found({}, listed="10.0.0.7:9").hosts] == [9]
