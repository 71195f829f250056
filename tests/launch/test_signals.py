"""Signals to ddprun come to the handlers of the ranks, who have time to end in their own way."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.jobs import LIMIT, PIDS, children_of, mpirun_of, names, pids, running, this_mpi, wait_until

MPI = this_mpi()

# A checkpoint takes a while: longer than mpirun leaves to ranks when one of them has ended.
SCRIPT = """
import os, pathlib, signal, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
got = []
def stop(number, frame):
    got.append(number)
    pathlib.Path(f'got.{rank}.{number}').touch()
def checkpoint():
    time.sleep(1)
    pathlib.Path(f'checkpoint.{rank}').touch()
def ready():
    MPI.COMM_WORLD.Barrier()
    pathlib.Path(f'pid.{os.getpid()}').touch()
def wait():
    while not got: time.sleep(0.01)
"""
ALL = "for one in (1, 2, 10, 12, 15): signal.signal(one, stop)\n"
STOPPING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture
def job(start: Callable, script: Callable, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts two ranks with the rest of a script and returns when both are ready."""

    def job(rest: str, *options: str) -> subprocess.Popen[str]:
        process = start(*options, "-n", "2", script(SCRIPT + rest))
        wait_until(lambda: len(running(tmp_path)) == 2)
        return process

    return job


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        *(pytest.param(n, marks=pytest.mark.full) for n in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)),
    ],
)
def test_ranks_end_in_their_own_way(job: Callable, tmp_path: Path, number: signal.Signals) -> None:
    process = job(ALL + "ready()\nwait()\ncheckpoint()\n")
    process.send_signal(number)
    assert process.wait(LIMIT) == 0
    assert {f"got.{r}.{number:d}" for r in range(2)} | {"checkpoint.0", "checkpoint.1"} <= names(tmp_path)


def test_a_rank_that_has_ended_leaves_the_others_their_time(job: Callable, tmp_path: Path) -> None:
    """Even if by an exit code of its own, which is the job's."""
    process = job(ALL + "ready()\nwait()\nif rank == 1: sys.exit(7)\ncheckpoint()\n")
    process.terminate()
    assert process.wait(LIMIT) == 7
    assert "checkpoint.0" in names(tmp_path)


@pytest.mark.skipif(MPI.ended_by == signal.SIGTERM, reason="this mpirun takes SIGTERM for the wish to end the job")
def test_sigterm_to_every_process_of_the_job_leaves_ranks_their_time(job: Callable, tmp_path: Path) -> None:
    """As Slurm's scancel and PBS send it: mpirun must not end the job by itself."""
    process = job(ALL + "ready()\nwait()\ncheckpoint()\n")
    mpirun = mpirun_of(process.pid)
    for pid in (mpirun, *children_of(mpirun), process.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(LIMIT) == 0
    assert {"checkpoint.0", "checkpoint.1"} <= names(tmp_path)


def test_a_rank_without_a_handler_waits_for_those_with_one(job: Callable, tmp_path: Path) -> None:
    process = job(f"if rank == 0:\n    {ALL}ready()\nif rank: time.sleep(3600)\nwait()\ncheckpoint()\n")
    process.terminate()
    assert process.wait(LIMIT) == 128 + signal.SIGTERM
    assert "checkpoint.0" in names(tmp_path)
    assert running(tmp_path) == []


def test_who_is_not_done_when_the_grace_is_over_is_killed(job: Callable, tmp_path: Path) -> None:
    process = job(ALL + "ready()\ntime.sleep(3600)\n", "--grace", "0.5")
    process.terminate()
    assert process.wait(LIMIT) == 128 + signal.SIGTERM
    assert "SIGTERM was passed on to ranks 0, 1, to end in 0.5 s" in process.stderr.read()
    assert {"got.0.15", "got.1.15"} <= names(tmp_path)
    assert running(tmp_path) == []


@pytest.mark.parametrize("second", STOPPING)
def test_a_second_signal_ends_the_job_at_once(job: Callable, tmp_path: Path, second: signal.Signals) -> None:
    process = job(ALL + "ready()\ntime.sleep(3600)\n", "--grace", "3600")
    process.terminate()
    wait_until(lambda: {"got.0.15", "got.1.15"} <= names(tmp_path))
    process.send_signal(second)
    assert process.wait(LIMIT) == 128 + signal.SIGTERM
    assert running(tmp_path) == []


def test_a_training_goes_on_after_a_signal_that_asks_for_no_end(job: Callable, tmp_path: Path) -> None:
    process = job(ALL + "ready()\nwhile 15 not in got: time.sleep(0.01)\n")
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        process.send_signal(number)
        wait_until(lambda: {f"got.{r}.{number:d}" for r in range(2)} <= names(tmp_path))  # noqa: B023
    assert process.wait(LIMIT) == 0


def test_ctrl_c_can_be_caught_as_python_users_do(job: Callable, tmp_path: Path) -> None:
    process = job("try:\n    ready()\n    time.sleep(3600)\nexcept KeyboardInterrupt: checkpoint()\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 0, process.stderr.read()
    assert {"checkpoint.0", "checkpoint.1"} <= names(tmp_path)


def test_ctrl_c_shows_where_one_rank_was(job: Callable) -> None:
    """One in Python, one inside of MPI, which does not hear of it."""
    process = job("ready()\nif rank == 1: time.sleep(3600)  # here\nMPI.COMM_WORLD.Barrier()\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 128 + signal.SIGINT
    said = process.stderr.read()
    assert said.count("Traceback") == 1
    assert "[rank 1]     if rank == 1: time.sleep(3600)  # here\n" in said
    assert "[rank 1] KeyboardInterrupt\n" in said


def test_a_signal_before_any_rank_is_there_ends_the_job(start: Callable, script: Callable) -> None:
    process = start("-n", "1", script(PIDS + "import time; time.sleep(3600)"))
    process.stderr.readline()  # what was decided
    process.terminate()
    assert process.wait(LIMIT) in (128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.fixture
def on_terminal(start: Callable, script: Callable, tmp_path: Path) -> Iterator[Callable]:
    """Starts two ranks with the rest of a script in the foreground of a terminal; the keys are written to the other."""
    keyboard, screen = pty.openpty()

    def take_terminal() -> None:
        for number in (signal.SIGINT, signal.SIGTSTP):  # ignored where pytest runs in the background
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        fcntl.ioctl(screen, termios.TIOCSCTTY, 0)

    def on_terminal(rest: str) -> tuple[subprocess.Popen[str], int]:
        process = start("-n", "2", script(SCRIPT + rest), stdin=screen, stdout=screen, preexec_fn=take_terminal)
        wait_until(lambda: len(running(tmp_path)) == 2)
        return process, keyboard

    yield on_terminal
    os.close(keyboard)
    os.close(screen)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_key_for_interrupt(on_terminal: Callable, tmp_path: Path) -> None:
    process, keyboard = on_terminal("ready()\ntime.sleep(3600)\n")
    os.write(keyboard, b"\x03")
    assert process.wait(LIMIT) == 128 + signal.SIGINT
    assert process.stderr.read().count("Traceback") == 1
    assert running(tmp_path) == []


def test_the_key_for_stop_stops_the_ranks_until_the_job_is_in_the_foreground_again(
    on_terminal: Callable, tmp_path: Path
) -> None:
    process, keyboard = on_terminal("ready()\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    os.write(keyboard, b"\x1a")
    wait_until(lambda: [state_of(pid) for pid in (*pids(tmp_path), process.pid)] == ["T"] * 3)
    (tmp_path / "go").touch()
    process.send_signal(signal.SIGCONT)  # as a shell's `fg` does
    assert process.wait(LIMIT) == 0
