"""A rank that does not come to the start of a job, or to its end, is noticed by the others. Whole programs."""

import re
import signal

import pytest

from tests.mpi_job import run_job

PROGRAM = """
import datetime, os, signal, sys, time
import ddp, engine
from ddp.world import bootstrap

site, timeout = sys.argv[1], float(sys.argv[2])
last = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1"

def stop(*_):
    os.kill(os.getpid(), signal.SIGSTOP)

if last and site == "stopped before the start":
    stop()
if last and site == "stopped with the launcher":
    os.kill(os.getppid(), signal.SIGSTOP)
    stop()
if last and site == "sleeps before the start":
    time.sleep(100)
if last and site == "stopped after MPI_Init":
    bootstrap.check_size = stop
ddp.init_process_group(timeout=datetime.timedelta(seconds=timeout))
if site == "enters twice":
    for _ in range(2):
        ddp.all_reduce(engine.ones(1))
        ddp.destroy_process_group()
        if last:
            time.sleep(2)
        ddp.init_process_group()
ddp.barrier()
if last and site == "stopped at the end":
    stop()
if last and site == "works on at the end":
    time.sleep(timeout + 2)
print("the end", flush=True)
"""


def run(site: str, timeout: float):
    return run_job(PROGRAM, 2, timeout=90, args=[site, str(timeout)], runner=())


@pytest.mark.parametrize(
    ("site", "who"),
    [
        ("stopped before the start", r"rank 1 \(process \d+\), which is stopped"),
        pytest.param("stopped after MPI_Init", r"rank 1 \(process \d+\), which is stopped", marks=pytest.mark.full),
        ("sleeps before the start", r"rank 1 \(process \d+\), which has not come to init_process_group"),
    ],
)
def test_a_rank_that_does_not_come_to_the_start_ends_the_job(site: str, who: str) -> None:
    result = run(site, 8)
    assert result.returncode != 0
    words = (
        rf"ddp watchdog on \S+: rank 0 has been waiting in init_process_group for 8 s, for {who}; the job is ended\n"
        r"rank 0 is at\n(.|\n)*program.py"
    )
    assert re.search(words, result.stderr), result.stderr


@pytest.mark.full
def test_a_launcher_that_does_not_end_is_ended() -> None:
    """What is said passes through it, and is lost."""
    assert run("stopped with the launcher", 8).returncode == -signal.SIGKILL


def test_a_rank_that_is_stopped_at_the_end_ends_the_job() -> None:
    result = run("stopped at the end", 8)
    assert result.returncode != 0
    assert re.search(
        r"ddp watchdog on \S+: nothing is heard of rank 1 for \d+ s \(stopped, or in code that holds the GIL\), and "
        r"rank 0 has ended and waits; that is longer than the "
        r"timeout of 8 s; the job is ended\n",
        result.stderr,
    ), result.stderr


@pytest.mark.full
def test_a_rank_may_work_for_as_long_as_it_likes_after_the_others_have_ended() -> None:
    result = run("works on at the end", 8)
    assert (result.returncode, result.stdout, result.stderr) == (0, "the end\nthe end\n", "")


@pytest.mark.full
def test_the_world_may_be_entered_again_by_some_ranks_later_than_by_others() -> None:
    result = run("enters twice", 60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "the end\nthe end\n", "")
