"""Whoever is killed, in whatever order: no process of a job outlives it, and no file."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from launch.place import SHARED_MEMORY
from tests.launch.jobs import (
    LIMIT,
    as_from_a_terminal,
    guard_of,
    is_running,
    mpirun_of,
    names,
    pids,
    running,
    wait_until,
)

# Ranks that wait for each other in memory, hear no polite request, and one has a child in a session of its own.
SCRIPT = """
import os, pathlib, signal, subprocess, sys, time
from mpi4py import MPI
for one in (1, 2, 15): signal.signal(one, signal.SIG_IGN)  # after MPI: a library of it takes SIGHUP for itself
if MPI.COMM_WORLD.rank == 0 and 'child' in sys.argv:
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pathlib.Path(f'pid.{child.pid}').touch()
MPI.COMM_WORLD.Barrier()
pathlib.Path(f'pid.{os.getpid()}').touch()
while True: time.sleep(0.01)
"""

KILLED: dict[str, Callable[[int, int, int], list[int]]] = {
    "ddprun": lambda ddprun, mpirun, guard: [ddprun],
    "mpirun": lambda ddprun, mpirun, guard: [mpirun],
    "ddprun, mpirun": lambda ddprun, mpirun, guard: [ddprun, mpirun],
    "mpirun, ddprun": lambda ddprun, mpirun, guard: [mpirun, ddprun],
    "the process group": lambda ddprun, mpirun, guard: [-ddprun],
}


@pytest.fixture
def job(start: Callable, script: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Starts two ranks, and a child in the background if asked; returns when all are there."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))

    def job(*arguments: str, **options: object) -> subprocess.Popen[str]:
        process = start("-n", "2", script(SCRIPT), *arguments, **{"process_group": 0, **options})
        wait_until(lambda: len(pids(tmp_path)) == 2 + len(arguments))
        return process

    return job


def memory_of(tmp_path: Path) -> Path:
    """Where the ranks of the job keep memory that they share."""
    (name,) = names(tmp_path / "tmp")
    return Path(SHARED_MEMORY) / name


@pytest.mark.parametrize("which", KILLED)
@pytest.mark.parametrize("arguments", [[], ["child"]])
def test_nothing_outlives_who_is_killed(job: Callable, tmp_path: Path, which: str, arguments: list[str]) -> None:
    process = job(*arguments)
    memory = memory_of(tmp_path)
    assert memory.is_dir()
    for pid in KILLED[which](process.pid, mpirun_of(process.pid), guard_of(process.pid)):
        (os.killpg if pid < 0 else os.kill)(abs(pid), signal.SIGKILL)
    wait_until(lambda: not (running(tmp_path) or names(tmp_path / "tmp") or memory.exists()))
    assert process.wait(LIMIT) in (-signal.SIGKILL, 128 + signal.SIGKILL)


def test_another_guard_takes_the_place_of_a_killed_one(job: Callable, tmp_path: Path) -> None:
    process = job("child")
    memory, first = memory_of(tmp_path), guard_of(process.pid)

    def replaced() -> bool:
        return guard_of(process.pid) not in (0, first)

    os.kill(first, signal.SIGKILL)
    wait_until(replaced)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not (running(tmp_path) or names(tmp_path / "tmp") or memory.exists()))


@pytest.mark.full
def test_a_guard_that_is_stopped_wakes_up_when_it_is_needed(job: Callable, tmp_path: Path) -> None:
    process = job("child")
    memory, guard = memory_of(tmp_path), guard_of(process.pid)
    os.kill(guard, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not (running(tmp_path) or names(tmp_path / "tmp") or memory.exists() or is_running(guard)))


@pytest.mark.full
def test_a_guard_that_is_stopped_does_not_outlive_a_job_that_is_ended(job: Callable, tmp_path: Path) -> None:
    process = job()
    memory, guard = memory_of(tmp_path), guard_of(process.pid)
    os.kill(guard, signal.SIGSTOP)
    process.terminate()
    assert process.wait(LIMIT) == 128 + signal.SIGTERM
    wait_until(lambda: not (running(tmp_path) or names(tmp_path / "tmp") or memory.exists() or is_running(guard)))


def test_ranks_end_when_all_that_watched_them_are_killed_at_once(job: Callable, tmp_path: Path) -> None:
    """The guard among them. What else was left goes with the next job."""
    process = job()
    memory = memory_of(tmp_path)
    for pid in (guard_of(process.pid), mpirun_of(process.pid), process.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running(tmp_path) == [])
    (left,) = (tmp_path / "tmp").iterdir()
    os.utime(left, (0, 0))
    for pid in tmp_path.glob("pid.*"):
        pid.unlink()
    second = job()
    assert not left.exists()
    assert not memory.exists()
    second.terminate()
    second.wait(LIMIT)


def test_a_closed_terminal_ends_the_job(job: Callable, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()

    def on_terminal() -> None:
        as_from_a_terminal()
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = job("child", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=on_terminal, process_group=None)
    memory = memory_of(tmp_path)
    os.close(theirs)
    os.close(ours)
    wait_until(lambda: not (running(tmp_path) or names(tmp_path / "tmp") or memory.exists()))
    assert process.wait(LIMIT) == 128 + signal.SIGHUP


def test_nothing_is_left_of_a_job_that_went_well(
    run: Callable, script: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    name = script("import os\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nprint(os.environ['DDPRUN_JOB'])\n")
    ended = run("-n", "2", name)
    assert ended.returncode == 0, ended.stderr
    assert names(tmp_path / "tmp") == set()
    assert not Path(SHARED_MEMORY, f"ddprun-{ended.stdout.split()[0]}").exists()
