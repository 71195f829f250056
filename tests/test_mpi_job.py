"""What runs whole programs on ranks: `tests/mpi_job.py`."""

import pytest

from tests.launch.testing.inner import has_ended
from tests.mpi_job import run_job


def test_run_job_returns_what_the_program_did() -> None:
    program = """
import sys
from mpi4py import MPI
print(MPI.COMM_WORLD.rank, sys.argv[1], flush=True)
MPI.COMM_WORLD.Barrier()  # the first that ends with 1 may end the others
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
