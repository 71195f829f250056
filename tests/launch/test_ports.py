"""A job on one host is not to be reached from another."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import ports

# What every process of the job listens on, and whether this host's own address answers there.
SCRIPT = """
import glob, os, re, socket
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.allreduce(1)
mark = f"DDPRUN_JOB={os.environ['DDPRUN_JOB']}".encode()
rows = [line.split() for table in ("tcp", "tcp6") for line in open(f"/proc/net/{table}")]
ports = {f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
open_ports = set()
for folder in glob.glob("/proc/[0-9]*"):
    try:
        if mark in open(f"{folder}/environ", "rb").read().split(b"\\0"):
            open_ports |= {ports.get(os.readlink(fd)) for fd in glob.glob(f"{folder}/fd/*")} - {None}
    except OSError:
        pass
answers = []
for port in sorted(open_ports):
    try:
        socket.create_connection((ADDRESS, port), 2).close()
        answers.append(port)
    except OSError:
        pass
comm.Barrier()
if comm.rank == 0: print(bool(open_ports), answers)
"""


def test_no_port_is_open_to_the_network(script: Callable, tmp_path: Path, environment: None) -> None:
    """In a network of its own, where the address is that of a device, not of the loopback."""
    name = script(SCRIPT.replace("ADDRESS", "'10.213.9.1'"))
    network = (
        "ip link set lo up && ip link add e0 type veth peer name e1 && ip address add 10.213.9.1/24 dev e0 && "
        "ip link set e0 up && ip link set e1 up || exit 77\n"
        'exec "$@"'
    )
    command = ["unshare", "--net", "bash", "-c", network, "bash", sys.executable, "-P", "-m", "launch", "-n", "2", name]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode in (1, 77) and not ended.stdout:
        pytest.skip(f"no network of our own can be made here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "True []\n"


# Opens its port, starts no rank before it is bound, and says that it was.
MPIRUN = """#!{python}
import socket, sys, time
if "--version" in sys.argv:
    sys.exit(print("HYDRA build details: Version: 5.0.0"))
with socket.create_server(("", 0)) as server:
    deadline = time.monotonic() + 20
    while not (device := server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\\0")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    print("bound to", device.decode() or "nothing", flush=True)
"""


def test_a_port_is_bound_before_the_first_rank_is_there(
    script: Callable, tmp_path: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "listens"
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    (folder / "mpirun").write_text(MPIRUN.format(python=python))  # whose path has no space
    (folder / "mpirun").chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    command = [python, "-P", "-m", "launch", "-n", "2", script("pass")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if ended.stdout == "bound to nothing\n" and os.geteuid() != 0:
        pytest.skip("this kernel or container does not allow it")
    assert ended.stdout == "bound to lo\n", ended.stderr


def test_a_socket_of_a_child_is_bound_from_outside() -> None:
    with socket.create_server(("", 0)) as server:
        code = "import sys; print('ready', flush=True); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[server.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            ports.keep_here(child.pid)
            device = server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
        if not device and os.geteuid() != 0:
            pytest.skip("this kernel or container does not allow it")
        assert device.rstrip(b"\0") == b"lo"
