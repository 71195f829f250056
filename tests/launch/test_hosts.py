"""ddprun with two hosts: what is known of ranks on the other one, what reaches them, and what is left there."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.peers import addresses
from tests.ddp.two_hosts import Hosts, NotPossibleError, two_hosts
from tests.launch.jobs import LIMIT, names, wait_until

ROOT = Path(__file__).parents[2]

# A remote shell for mpirun: enters the other network namespace, and a process namespace that lasts as long as there is
# somebody in it, in a session that mpirun cannot end, and without mpirun's environment: as ssh and another host do.
AGENT = """#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1; shift; unset DDPRUN_JOB
exec ip netns exec "$host" unshare --uts --pid --fork --mount-proc setsid bash -c "hostname $host; $*
while set -- /proc/[0-9]*; [ \\$# -gt 1 ]; do sleep 0.05; done"
"""

SCRIPT = """
import os, pathlib, signal, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
got = []
def stop(number, frame):
    got.append(number)
def ready():
    MPI.COMM_WORLD.Barrier()
    pathlib.Path(f'ready.{rank}').touch()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    try:
        with two_hosts() as hosts:
            yield hosts
    except NotPossibleError as why:
        pytest.skip(f"two hosts cannot be made here: {why}")


Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Start]:
    """Starts the rest of a script on two ranks of each host, ddprun being on the first."""
    agent, hostfile, program = tmp_path / "agent", tmp_path / "hosts", tmp_path / "train.py"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    hostfile.write_text("".join(f"{name} slots=2\n" for name in hosts.names))
    settings = {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path / "tmp"),
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        "OMPI_MCA_btl_tcp_if_include": "e0",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_IFACE": "e0",
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": str(agent),
        "I_MPI_HYDRA_IFACE": "e0",
        "FI_TCP_IFACE": "e0",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "e0",
        "MPIR_CVAR_NOLOCAL": "1",  # MPICH would share memory across process namespaces
    }
    (tmp_path / "tmp").mkdir()
    first = hosts.names[0]
    enter = ["ip", "netns", "exec", first, "unshare", "--uts", "bash", "-c", f'hostname {first}; exec "$@"', "bash"]
    started = []

    def start(rest: str) -> subprocess.Popen[str]:
        program.write_text(SCRIPT + rest)
        command = [*enter, sys.executable, "-P", "-m", "launch", "-n", "4", "--hostfile", str(hostfile), "train.py"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | settings, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def processes(host: str) -> list[int]:
    """As the first host numbers them."""
    return [int(pid) for pid in subprocess.run(["ip", "netns", "pids", host], capture_output=True).stdout.split()]


def ready(folder: Path) -> bool:
    return {f"ready.{rank}" for rank in range(4)} <= names(folder)


def test_a_job_that_goes_well(start: Start, tmp_path: Path) -> None:
    process = start("if rank == 0: print(sys.stdin.read())\nready()\n")
    out, err = process.communicate("blue\nred\n", timeout=LIMIT)
    assert process.returncode == 0, err
    assert out == "blue\nred\n\n"
    assert err.count("ddprun") == 1  # what was decided
    assert names(tmp_path / "tmp") == set()


def test_a_host_that_dies_is_no_success_and_is_named(start: Start, hosts: Hosts, tmp_path: Path) -> None:
    process = start("ready()\ntime.sleep(3600)\n")
    wait_until(lambda: ready(tmp_path))
    for pid in processes(hosts.names[1]):
        with contextlib.suppress(ProcessLookupError):  # some end with the first of them
            os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert f"ranks 2, 3 on {hosts.names[1]} were not seen to finish" in err
    wait_until(lambda: processes(hosts.names[0]) == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_reach_the_handlers_of_the_other_host(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    process = start(
        "for one in (2, 10, 12, 15): signal.signal(one, stop)\nready()\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(1)\npathlib.Path(f'checkpoint.{rank}.{got[0]}').touch()\n"
    )
    wait_until(lambda: ready(tmp_path))
    process.send_signal(number)
    assert process.wait(LIMIT) == 0, process.stderr.read()
    assert {f"checkpoint.{rank}.{number:d}" for rank in range(4)} <= names(tmp_path)


def test_ranks_without_a_handler_end(start: Start, hosts: Hosts, tmp_path: Path) -> None:
    process = start("ready()\ntime.sleep(3600)\n")
    wait_until(lambda: ready(tmp_path))
    process.terminate()
    assert process.wait(LIMIT) == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(processes, hosts.names)))


# By what mpirun calls it: its own process, and its agent on the other host.
@pytest.mark.parametrize("victims", [["launch"], ["mpirun", "prterun", "mpiexec"], ["prted", "hydra_pmi_proxy"]])
def test_nothing_outlives_who_is_killed(start: Start, hosts: Hosts, tmp_path: Path, victims: list[str]) -> None:
    """Ranks that hear no polite request, one with a child in a session of its own."""
    start(
        "import subprocess\n"
        "for one in (1, 2, 15): signal.signal(one, signal.SIG_IGN)\n"
        "if rank == 3: subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "ready()\nwhile True: time.sleep(0.01)\n"
    )
    wait_until(lambda: ready(tmp_path))
    host = hosts.names[victims[0] == "prted"]
    for pid in processes(host):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if Path(words[0]).name in victims or words[1:4] == ["-P", "-m", *victims]:
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(processes, hosts.names)))
    wait_until(lambda: names(tmp_path / "tmp") == set())


def test_who_does_not_know_the_token_is_not_heard(start: Start, hosts: Hosts, tmp_path: Path) -> None:
    """Neither one who says nothing, nor one who says what a rank would say."""
    process = start(
        "import socket\n"
        "_, port, where = os.environ['DDPRUN_REPORT'].split(':', 2)\n"
        "quiet = socket.create_connection((where.split(',')[0], int(port)))\n"
        "loud = socket.create_connection((where.split(',')[0], int(port)))\n"
        "loud.sendall(b'x' * 32 + f'rank {rank} 1 nowhere\\nfinished\\n'.encode())\n"
        "while loud.recv(4096): pass\n"
        "print('DDPRUN_TOKEN' in os.environ)\n"
        "ready()\n"
    )
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out == "False\n" * 4


def test_addresses(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/fib_trie").write_text(
        "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.0.0.255\n"
        "        /32 link BROADCAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n"
    )
    assert addresses(tmp_path) == ["10.0.0.7", "127.0.0.1"]
    (tmp_path / "net/if_inet6").write_text(
        "20010db8000000000000000000000007 02 40 00 80 e0\nfe800000000000000000000000000007 02 40 20 80 e0\n"
    )
    assert addresses(tmp_path) == ["10.0.0.7", "2001:db8::7", "127.0.0.1"]
