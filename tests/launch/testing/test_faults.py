"""The plugin that runs tests on MPI ranks: it names the rank that failed, and does not hang when a rank does."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.testing.inner import RunFile, has_ended, wait_until
from tests.mpi_job import python_path


@contextlib.contextmanager
def killed_ones_folder() -> Iterator[dict[str, str]]:
    """The environment of a process that is killed, with a folder for its temporary files, which nobody else removes.

    With a short name: paths of sockets have 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="killed-", ignore_cleanup_errors=True) as folder:
        yield {**os.environ, "TMPDIR": folder, "PYTHONPATH": python_path()}


def test_a_failure_for_which_others_wait_ends_the_job_and_the_next_test_runs(run_file: RunFile) -> None:
    result = run_file(
        """
pytestmark = pytest.mark.mpi(ranks=[2], timeout=60)

def test_one_fails_the_other_waits():
    assert comm.rank == 0, "left alone"
    comm.recv(source=1)

def test_next():
    comm.Barrier()
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    output = result.stdout.str()
    order = [
        "left alone",
        "rank 0 of 2 still running 2 s after that",
        "where rank 0 was",
        "in test_one_fails_the_other_waits",
    ]
    places = [output.index(text) for text in order]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "waits_where", ["the rank that raised is through", pytest.param("both wait", marks=pytest.mark.full)]
)
def test_an_expected_exception_on_one_rank_for_which_others_wait_ends_the_test_with_its_traceback(
    run_file: RunFile, waits_where: str
) -> None:
    result = run_file(
        f"""
pytestmark = pytest.mark.mpi(ranks=[2], timeout=150)

def only_on_rank_1():
    if comm.rank == 1:
        raise ValueError("said by rank 1")

def test_one_raises_the_other_waits():
    if comm.rank == 1:
        with pytest.raises(ValueError):
            only_on_rank_1()
            comm.Barrier()
        if {waits_where == "both wait"}:
            comm.recv(source=0)
    else:
        comm.Barrier()

def test_next():
    comm.Barrier()
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    output = result.stdout.str()
    order = [
        "did not move for 5 s after rank 1 ",
        "expected on rank 1",
        "in only_on_rank_1",
        "ValueError: said by rank 1",
        "where rank 0 was",
    ]
    places = [output.index(text) for text in order]
    assert places == sorted(places)


@pytest.mark.full
def test_who_moves_is_waited_for(run_file: RunFile) -> None:
    result = run_file(
        """
@pytest.mark.mpi(ranks=[2])
def test_one_has_more_to_do():
    with pytest.raises(ValueError):
        if comm.rank == 0:
            raise ValueError
        exec("\\n".join(["time.sleep(0.05)"] * 140) + "\\nraise ValueError")
"""
    )
    result.assert_outcomes(passed=1)


def test_a_hang_is_ended_and_says_where_it_was(run_file: RunFile, pytester: pytest.Pytester) -> None:
    result = run_file(
        """
@pytest.mark.mpi(ranks=[2], timeout=2)
def test_sleeps():
    print(os.getpid(), file=open(f"{comm.rank}.pid", "w"))
    time.sleep(100)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*rank 0, 1 of 2 still running after 2 s*", "*where rank ? was*", "*in test_sleeps"])
    for rank in range(2):
        pid = int((pytester.path / f"{rank}.pid").read_text())
        assert has_ended(pid)


@pytest.mark.full
def test_a_rank_that_dies_is_named_and_later_jobs_are_limited(run_file: RunFile) -> None:
    result = run_file(
        """
pytestmark = pytest.mark.mpi(ranks=[2])

@pytest.mark.parametrize("again", range(4))
def test_dies(again):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    comm.recv(source=1)
"""
    )
    result.assert_outcomes(failed=4)
    output = result.stdout.str()
    assert "rank 1 of 2 ended inside the test" in output
    assert "Segmentation fault" in output
    assert "not run: 3 jobs of 2 ranks for test_inner.py have died already" in output


def test_what_a_rank_wrote_before_it_was_ended_from_within_is_shown(run_file: RunFile) -> None:
    """As a watchdog does: pytest has captured its words and cannot report them any more."""
    result = run_file(
        """
@pytest.mark.mpi(ranks=[2])
def test_is_aborted():
    if comm.rank == 1:
        os.write(2, b"why this is the end\\n")
        comm.Abort(1)
    comm.recv(source=1)
"""
    )
    result.assert_outcomes(failed=1)
    assert "captured on rank 1\nwhy this is the end" in result.stdout.str()


@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="alone"), pytest.param(("-n1", "--dist=loadfile"), id="xdist", marks=pytest.mark.full)],
)
def test_nothing_is_left_when_pytest_is_killed(
    run_file: RunFile, pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    text = """
import pathlib

@pytest.mark.mpi(ranks=[2])
def test_of_ranks():
    pathlib.Path(f"{comm.rank}.pid").write_text(f"{os.getpid()} {os.getppid()}")
    if comm.rank == 0:
        comm.recv(source=1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("stopped").touch()
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    run_file(text, "--collect-only")
    command = [sys.executable, "-m", "pytest", *options]
    with (
        killed_ones_folder() as env,
        subprocess.Popen(
            command, cwd=pytester.path, env=env, stdout=subprocess.DEVNULL, start_new_session=True
        ) as process,
    ):
        try:
            names = [pytester.path / name for name in ("0.pid", "1.pid", "stopped")]
            wait_until(lambda: all(path.is_file() and (path.name == "stopped" or path.read_text()) for path in names))
            workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        finally:
            process.kill()
        pids = {int(pid) for rank in range(2) for pid in (pytester.path / f"{rank}.pid").read_text().split()}
        assert len(pids) == 3
        assert [pid for pid in (*pids, *workers) if not has_ended(pid)] == []


def test_a_program_on_ranks_ends_when_the_test_process_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, pathlib, time
pathlib.Path({str(tmp_path)!r}, f"{{os.getpid()}}.{{os.getppid()}}").touch()
time.sleep(1000)
"""
    code = f"from tests.mpi_job import run_job\nrun_job({program!r}, 2)\n"
    with killed_ones_folder() as env, subprocess.Popen([sys.executable, "-c", code], env=env) as process:
        try:
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        finally:
            process.kill()
        pids = {int(pid) for path in tmp_path.iterdir() for pid in path.name.split(".")}
        assert len(pids) == 3
        assert [pid for pid in pids if not has_ended(pid)] == []
