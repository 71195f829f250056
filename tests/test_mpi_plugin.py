"""The plugin that runs tests on MPI ranks: it must report the rank that failed, and must not hang when a rank does."""

import time
from pathlib import Path

import pytest

from tests.mpi_job import python_path, run_job


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or will be as soon as its parent looks; a killed process may take a moment."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def run_file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run a test file in a pytest of its own, with the plugin."""
    monkeypatch.setenv("PYTHONPATH", python_path())
    pytester.makeconftest('pytest_plugins = ["tests.mpi_plugin"]')

    def run(text: str, *args: str) -> pytest.RunResult:
        header = "import os, signal, time, pytest\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        pytester.makepyfile(test_inner=header + text)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA", *args, timeout=120)

    return run


def test_passes_fails_and_skips_are_those_of_the_ranks(run_file) -> None:
    result = run_file(
        """
@pytest.mark.mpi(ranks=[1, 2])
def test_passes(ranks, tmp_path, shared_tmp_path):
    assert comm.size == ranks
    (tmp_path / "mine").touch(exist_ok=False)
    (shared_tmp_path / str(comm.rank)).touch()
    comm.Barrier()
    assert len(os.listdir(shared_tmp_path)) == ranks

@pytest.mark.mpi(ranks=[2])
def test_fails_on_one_rank():
    print(f"words of rank {comm.rank}")
    assert comm.rank == 0, "the last rank says no"

@pytest.mark.mpi(ranks=[2])
def test_skips():
    pytest.skip("not here")

@pytest.mark.mpi(ranks=[2])
def test_skips_on_one_rank():
    if comm.rank == 1:
        pytest.skip("not here")

@pytest.mark.mpi(ranks=[2])
@pytest.mark.xfail(strict=True)
def test_fails_as_expected():
    assert False

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

@pytest.mark.mpi(ranks=[2])
def test_fixture_fails(broken):
    pass

def test_without_mark():
    assert comm.size == 1
"""
    )
    result.assert_outcomes(passed=3, failed=3, skipped=1, xfailed=1)
    output = result.stdout.str()
    assert "rank 1 of 2, call:" in output
    assert "the last rank says no" in output
    assert "words of rank 1" in output
    assert "words of rank 0" not in output
    assert "skipped on ranks [1] only" in output
    assert "not here" in output
    assert "rank 0 of 2, setup:" in output


def test_a_failure_for_which_others_wait_ends_the_job_and_the_next_test_runs(run_file) -> None:
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
        "rank 0 of 2 still running 5 s after that",
        "where rank 0 was",
        "in test_one_fails_the_other_waits",
    ]
    places = [output.index(text) for text in order]
    assert places == sorted(places)


def test_a_hang_is_ended_and_says_where_it_was(run_file, pytester: pytest.Pytester) -> None:
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


def test_a_rank_that_dies_is_named_and_later_jobs_are_limited(run_file) -> None:
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


def test_a_wrong_mark_is_a_usage_error(run_file) -> None:
    result = run_file("@pytest.mark.mpi(2)\ndef test_it(): pass\n")
    assert result.ret != 0
    assert "expected mpi(ranks=[1, 2], timeout=60), got mpi(2,)" in result.stdout.str() + result.stderr.str()


def test_run_job_returns_what_the_program_did() -> None:
    program = """
import sys
from mpi4py import MPI
print(MPI.COMM_WORLD.rank, sys.argv[1])
raise SystemExit(MPI.COMM_WORLD.rank)
"""
    result = run_job(program, 2, timeout=60, args=("word",))
    assert result.returncode == 1
    assert sorted(result.stdout.split("\n")) == ["", "0 word", "1 word"]
    assert 0 < result.seconds < 60


def test_run_job_ends_a_job_that_takes_too_long(tmp_path) -> None:
    program = f"""
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(tmp_path)!r}, "pid").write_text(str(os.getpid()))
time.sleep(100)
"""
    with pytest.raises(pytest.fail.Exception, match="still running after 3 s"):
        run_job(program, 1, timeout=3)
    assert has_ended(int((tmp_path / "pid").read_text()))
