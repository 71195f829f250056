"""ddprun with two hosts: what is known of ranks on the other one, what reaches them, and what is left there."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from launch.argv import INTEL_MPI, OPEN_MPI, OPEN_MPI_4
from launch.peers import addresses
from tests.campaigns import elastic_hosts
from tests.ddp.two_hosts import Hosts, NotPossibleError, two_hosts
from tests.launch.jobs import LIMIT, as_from_a_terminal, names, this_mpi, wait_until, words_of
from tests.launch.on_two_hosts import ddprun, hostfile_of, prepare

MPI = this_mpi()
AGENTS = OPEN_MPI.agent, OPEN_MPI_4.agent
HYDRA = ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC")

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


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(environment: None, hosts: Hosts, tmp_path: Path) -> Iterator[Start]:
    """Starts the rest of a script on two ranks of each host, ddprun being on the first.

    options: where ddprun is to have the hosts from, if not from its hostfile. environ: changes of the environment;
    None: without this variable.
    """
    program, hostfile = tmp_path / "train.py", hostfile_of(hosts, tmp_path)
    settings = prepare(hosts, tmp_path)
    started = []

    def start(
        rest: str,
        options: Sequence[str] = ("--hostfile", str(hostfile)),
        environ: Mapping[str, str | None] | None = None,
    ) -> subprocess.Popen[str]:
        program.write_text(SCRIPT + rest)
        command = ddprun(hosts, ["-n", "4", *options, "train.py"])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {name: value for name, value in (os.environ | settings | (environ or {})).items() if value is not None}
        process = subprocess.Popen(command, cwd=tmp_path, env=env, preexec_fn=as_from_a_terminal, **pipes)
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


@pytest.mark.full
def test_a_job_on_the_other_host_alone_has_its_time(start: Start, hosts: Hosts, tmp_path: Path) -> None:
    """mpirun may have no child then: Open MPI's remote shell ends when its agent is there."""
    process = start("time.sleep(7)\nprint(os.uname().nodename)\n", ["-n", "2", "-H", f"{hosts.names[1]}:2"])
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out == f"{hosts.names[1]}\n" * 2


def test_a_training_has_the_bits_that_it_has_on_one_host(start: Start, tmp_path: Path) -> None:
    """A small network, and the world that it is trained in."""
    training = """
import hashlib, ddp, engine
import engine.nn as nn
ddp.init_process_group()
engine.manual_seed(0)
net = ddp.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
optimizer = engine.optim.SGD(net.parameters(), lr=0.1)
x = engine.arange(4 * 16 * 8, dtype=engine.float32).reshape(4, 16, 8)[rank].sin()
for _ in range(5):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
digest = hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')
print(digest, *(os.environ[name] for name in names))
"""
    lines = []
    for options in ((), ("-H", "localhost:4")):
        process = start(training, options) if options else start(training)
        out, err = process.communicate(timeout=10 * LIMIT)  # kernels of a new cache, beside other ranks
        assert process.returncode == 0, err
        lines.append(sorted(line.split(maxsplit=1) for line in out.splitlines()))
    (two, places), (one, alone) = (
        ({digest for digest, _ in found}, sorted(words for _, words in found)) for found in lines
    )
    assert len(two) == 1
    assert two == one
    first = hosts_of(tmp_path)[0]
    if MPI is not OPEN_MPI:  # whose ranks are each on a host of its own here, see MPIR_CVAR_NOLOCAL
        return
    assert places == [f"{rank} 4 {rank % 2} 2 {first} 29500" for rank in range(4)]
    assert alone == [f"{rank} 4 {rank} 4 localhost 29500" for rank in range(4)]


def hosts_of(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "hosts").read_text().splitlines()]


def test_what_mpirun_and_ddprun_are_connected_by_is_kept_alive(start: Start) -> None:
    """Every such connection of the first host asks within 30 s whether the other end is there, from either end."""
    process = start(
        "import re, subprocess\n"
        "if rank == 0:\n"
        "    lines = subprocess.check_output(['ss', '-Htnop', 'state', 'established'], text=True).splitlines()\n"
        "    kept = [line for line in lines if re.search(r'mpirun|prterun|python', line) and 'keepalive' in line]\n"
        "    print(len(kept), [line for line in kept if 'min' in line.partition('keepalive')[2]])\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    count, _, late = out.strip().partition(" ")
    assert int(count) > 0
    assert late == "[]"


def test_other_hosts_get_what_they_need_and_no_secret(start: Start, hosts: Hosts, tmp_path: Path) -> None:
    given = {"CUPY_CACHE_DIR": "c", "NCCL_DEBUG": "n", "MKL_CBWR": "m", "NUMBA_TOKEN": "t", "MINE": "a b", "OTHER": "o"}
    asked = [*given, "SET", "HF_TOKEN"]
    script = f"print(rank, [os.environ.get(name) for name in {asked}])\nready()\n"
    options = ["--hostfile", str(tmp_path / "hosts"), "-x", "MINE", "-x", "SET=1 2", "-x", "HF_TOKEN"]
    process = start(script, options, given | {"HF_TOKEN": "h"})
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    kept_back = (None, None) if MPI.name == "Open MPI" else ("t", "o")  # Hydra hands on everything, and ddprun says so
    assert f"3 {['c', 'n', 'm', kept_back[0], 'a b', kept_back[1], '1 2', 'h']}" in out.splitlines()


def test_logs_are_written_on_the_other_host_too(start: Start, tmp_path: Path) -> None:
    options = ["--hostfile", str(tmp_path / "hosts"), "--log-dir", "logs", "--tag"]
    process = start("print('here is', rank)\nready()\n", options)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out == "[rank 0] here is 0\n"
    assert [(tmp_path / f"logs/rank_{rank}.log").read_text() for rank in range(4)] == [
        f"here is {rank}\n" for rank in range(4)
    ]


@pytest.mark.parametrize("system", ["PBS", "LSF", "Grid Engine"])
def test_the_hosts_of_a_batch_systems_job(start: Start, hosts: Hosts, tmp_path: Path, system: str) -> None:
    """Two slots on each host. LSF and Grid Engine start processes on them by their own programs, which mpirun finds."""
    first, second = hosts.names
    agent, nodes, tools = tmp_path / "agent", tmp_path / "nodes", tmp_path / "tools"
    tools.mkdir()
    environ: dict[str, str | None] = {"PATH": f"{tools}:{os.environ['PATH']}"}
    if system == "PBS":
        nodes.write_text(f"{first}\n{first}\n{second}\n{second}\n")
        environ |= {"PBS_JOBID": "9.pbs", "PBS_NODEFILE": str(nodes)}
    elif system == "LSF":
        (tools / "blaunch").write_text(f'#!/bin/bash\ntouch {tmp_path}/asked; exec {agent} "$@"\n')
        environ |= {"LSB_JOBID": "9", "LSB_MCPU_HOSTS": f"{first} 2 {second} 2", "LSF_BINDIR": str(tools)}
        environ |= dict.fromkeys(AGENTS)
    else:
        qrsh = tmp_path / "sge/bin/lx-amd64/qrsh"
        qrsh.parent.mkdir(parents=True)
        qrsh.symlink_to(tools / "qrsh")
        (tools / "qrsh").write_text(f'#!/bin/bash\ntouch {tmp_path}/asked; exec {agent} "$@"\n')
        nodes.write_text(f"{first} 2 all.q@{first} UNDEFINED\n{second} 2 all.q@{second} UNDEFINED\n")
        environ |= {"JOB_ID": "9", "PE_HOSTFILE": str(nodes), "SGE_ROOT": str(tmp_path / "sge"), "ARC": "lx-amd64"}
        environ |= dict.fromkeys(AGENTS)
    by_its_own_program = system != "PBS" and MPI is not INTEL_MPI  # which takes ssh
    if by_its_own_program:
        environ |= dict.fromkeys(HYDRA)
    for tool in tools.iterdir():
        tool.chmod(0o755)
    process = start("print(rank, os.uname().nodename)\nready()\n", [], environ)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert f"({system} job 9" in err
    assert sorted(out.splitlines()) == [f"0 {first}", f"1 {first}", f"2 {second}", f"3 {second}"]
    assert (tmp_path / "asked").exists() == by_its_own_program


def end_host(host: str, ddprun: subprocess.Popen[str], way: str = "") -> None:
    """Kills all processes of a host. way: "busy", ddprun comes to look late, when mpirun has killed those of the other;
    "by turns", a rank goes first, and the host still answers for a moment.
    """
    there = processes(host)
    if way == "busy":
        ddprun.send_signal(signal.SIGSTOP)
    elif way == "by turns":
        os.kill(next(pid for pid in there if "worker.py" in Path(f"/proc/{pid}/cmdline").read_text()), signal.SIGKILL)
        time.sleep(0.05)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none has time for a last word while the others are killed
        for pid in there:
            with contextlib.suppress(ProcessLookupError):  # some end with the first of them
                os.kill(pid, number)
    if way == "busy":
        time.sleep(1.0)
        ddprun.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("way", ["", "busy", "by turns"])
def test_a_job_is_started_again_on_the_host_that_is_left(start: Start, hosts: Hosts, tmp_path: Path, way: str) -> None:
    if way == "by turns" and MPI is not OPEN_MPI:
        pytest.skip("this MPI ends the job for the first rank, and finds the host there again")
    rest = "if MPI.COMM_WORLD.size == 4:\n    ready()\n    time.sleep(3600)\n"
    rest += "print(MPI.COMM_WORLD.size, os.environ['TORCHELASTIC_RESTART_COUNT'], os.uname().nodename)\n"
    process = start(rest, ["--hostfile", str(tmp_path / "hosts"), "--max-restarts", "2"])
    wait_until(lambda: ready(tmp_path))
    end_host(hosts.names[1], process, way)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    # Where mpirun has ended the other host's ranks before that is known, a start that reaches nobody tells it.
    lost = f"host {hosts.names[1]} no longer answered; the job is started again"
    starts = 2 if way == "by turns" and f"{lost} (2 of 2)" in err else 1
    assert f"{lost} ({starts} of 2)" in err
    assert out.splitlines().count(f"2 {starts} {hosts.names[0]}") == 2  # mpirun may say there that it lost a host


# Ends with the same digest, whoever carries its shards; is slow where it is to be struck.
TRAINING = """
import datetime, json, ddp, engine, engine.nn.functional as F
from ddp import checkpoint
from engine import nn
from engine.data import DataLoader, TensorDataset
ddp.init_process_group(host_timeout=datetime.timedelta(seconds=15))
job = ddp.Job(shards=8, seed=0)
x = engine.randn(160, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_sampler=ddp.ShardSampler(data, 16, job))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 1))
net = ddp.DistributedDataParallel(model, job=job)
optimizer = engine.optim.AdamW(net.parameters(), lr=1e-2)
def train_step():
    for inputs, targets in job.shards(loader):
        F.mse_loss(net(inputs), targets).backward()
    optimizer.step()
with checkpoint.Manager("states", {"job": job, "net": net, "optimizer": optimizer}, every=5) as saving:
    saving.restore()
    while job.step < 30:
        job.run(train_step)
        saving.step(job.step)
        if job.step > 12 and ddp.get_world_size() == 4:
            pathlib.Path(f"ready.{rank}").touch()
            time.sleep(0.2)
if ddp.get_rank() == 0:
    print(json.dumps({"digest": ddp.digest(net, optimizer), "world": ddp.get_world_size()}))
"""


@pytest.mark.parametrize("options", [[], ["--elastic", "1"]])
@pytest.mark.parametrize("cut", [False, True])
def test_a_training_that_loses_a_host_ends_with_the_same_digest(
    start: Start, hosts: Hosts, tmp_path: Path, cut: bool, options: list[str]
) -> None:
    """Since all its processes end, mpirun's there, too, or the cable to it is cut."""
    if options and not MPI.elastic:
        pytest.skip("this MPI ends the job when a rank is lost")
    alone = start(TRAINING, ["-H", "localhost:1", "-n", "1"])
    expected, err = alone.communicate(timeout=10 * LIMIT)  # kernels of a new cache
    assert alone.returncode == 0, err
    shutil.rmtree(tmp_path / "states")
    process = start(TRAINING, ["--hostfile", str(tmp_path / "hosts"), "--max-restarts", "1", *options])
    wait_until(lambda: ready(tmp_path), 10 * LIMIT)
    if cut:
        hosts.lose_packets()
    else:
        end_host(hosts.names[1], process)
    out, err = process.communicate(timeout=10 * LIMIT)
    assert process.returncode == 0, err
    last = [line for line in out.splitlines() if line.startswith("{")][-1]
    assert last == expected.strip().replace('"world": 1', '"world": 2')
    # The hosts share /dev/shm here, and the other one's guard may have been the first to remove the job's folder in it.
    at_step = r"( at step 1\d)?" if cut and MPI is OPEN_MPI_4 else r" at step 1\d"
    assert re.search(rf"host {hosts.names[1]} no longer answered{at_step}; the job is started again \(1 of 1\)", err)


# Strikes ranks while gradients are summed. Those that are left know them by their first numbers.
STRUCK = """
kind, *victims = pathlib.Path("strike").read_text().split()
def strike():
    if str(rank) in victims and job.step == 9:
        if kind == "raises":
            raise ArithmeticError("a bad sample")
        os.kill(os.getpid(), signal.Signals[kind])
victims, _, later = " ".join(victims).partition(" then ")
if str(rank) in later:  # is stopped while the others recover
    from ddp import losses
    losses.shrink = lambda: os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize(
    ("strike", "why"),
    [
        ("SIGKILL 2 3", "killed, or crashed"),
        ("SIGKILL 3", "killed, or crashed"),
        ("SIGKILL 0 1", "killed, or crashed"),
        ("SIGKILL 0 2", "killed, or crashed"),
        ("SIGSEGV 2 3", "killed, or crashed"),
        ("raises 2", "ArithmeticError: a bad sample"),
        ("SIGSTOP 2 3", "no answer for 4 s"),
        ("SIGSTOP 0", "no answer for 4 s"),
        ("SIGKILL 1 then 2 3", "stopped while others recovered: no answer for 4 s"),
    ],
)
def test_a_training_goes_on_without_ranks_of_either_host(
    start: Start, hosts: Hosts, tmp_path: Path, strike: str, why: str
) -> None:
    if not MPI.elastic:
        pytest.skip("this MPI ends the job when a rank is lost")
    program = TRAINING.replace("=15)", "=4)")
    program = program.replace(".backward()\n", ".backward()\n        strike()\n")
    program = program.replace("def train_step", STRUCK + "def train_step")
    (tmp_path / "strike").write_text("none")
    alone = start(program, ["-H", "localhost:2", "-n", "2"])
    expected, err = alone.communicate(timeout=10 * LIMIT)  # kernels of a new cache
    assert alone.returncode == 0, err
    shutil.rmtree(tmp_path / "states")
    (tmp_path / "strike").write_text(strike)
    process = start(program, ["--hostfile", str(tmp_path / "hosts"), "--elastic", "1"])
    out, err = process.communicate(timeout=10 * LIMIT)
    assert process.returncode == 0, err
    left = 4 - sum(word.isdigit() for word in strike.split())
    last = [line for line in out.splitlines() if line.startswith("{")][-1]
    assert last == expected.strip().replace('"world": 2', f'"world": {left}')
    assert why in err
    assert "Exception in thread" not in err
    assert f"the job goes on with {left} rank" in err


def test_a_sample_of_the_campaign(hosts: Hosts, tmp_path: Path) -> None:
    if not MPI.elastic:
        pytest.skip("this MPI ends the job when a rank is lost")
    assert elastic_hosts.strike(hosts, tmp_path, jobs=4, seed=0) == 0


@pytest.mark.parametrize("way", ["", "busy"])
def test_a_host_that_dies_is_no_success_and_is_named(start: Start, hosts: Hosts, tmp_path: Path, way: str) -> None:
    process = start("ready()\ntime.sleep(3600)\n")
    wait_until(lambda: ready(tmp_path))
    end_host(hosts.names[1], process, way)
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
@pytest.mark.parametrize(
    "victims", [["launch"], ["mpirun", "prterun", "mpiexec", "mpiexec.hydra"], ["prted", "orted", "hydra_pmi_proxy"]]
)
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
    found = {pid: words_of(pid) for pid in processes(host)}  # all of them first: one death brings others
    for pid, words in found.items():
        if Path(words[0]).name in victims or words[1:4] == ["-P", "-m", *victims]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(processes, hosts.names)))
    for folder in ["tmp"] if MPI is OPEN_MPI_4 else ["tmp", "other"]:  # on the other host its daemon leaves one there
        wait_until(lambda folder=folder: names(tmp_path / folder) == set())


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
