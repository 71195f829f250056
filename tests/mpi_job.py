"""Whole programs on several ranks.

`run_job` runs a whole program on several ranks and is for tests of faults: what a job does when a rank raises, dies or
sleeps. Tests of what ranks compute together are marked `mpi` instead, see `launch/testing/`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch.testing.process import end_process, mpirun_command, start_process

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: like `subprocess.CompletedProcess`, with the seconds it took."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def run_job(
    script: str,
    ranks: int,
    timeout: float = 60.0,
    args: Sequence[str] = (),
    runner: Sequence[str] = ("-m", "mpi4py"),
    environment: Mapping[str, str] | None = None,
) -> JobResult:
    """Run the program text `script` on `ranks` ranks under `mpirun` and wait for it.

    timeout: seconds; a job that takes longer is ended and fails the test, with its output. runner: what stands between
    Python and the script. environment: variables added to this process's.
    """
    with tempfile.TemporaryDirectory(prefix="allstride-job-") as folder:
        program = Path(folder, "program.py")
        program.write_text(script)
        command = [*mpirun_command(ranks), sys.executable, *runner, str(program), *args]
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        started = time.monotonic()
        # Files, not pipes: a process that outlives mpirun would keep a pipe open and this one reading.
        with out.open("wb") as out_file, err.open("wb") as err_file:
            given = {"PYTHONPATH": python_path(), "PRTE_MCA_prte_local_tmpdir_base": folder, **(environment or {})}
            process = start_process(command, out_file.fileno(), err_file.fileno(), given)
            try:
                returncode = process.wait(timeout)
            except subprocess.TimeoutExpired:
                returncode = None
            finally:
                end_process(process)
        result = JobResult(
            -1 if returncode is None else returncode,
            out.read_text(errors="replace"),
            err.read_text(errors="replace"),
            time.monotonic() - started,
        )
    if returncode is None:
        pytest.fail(
            f"a job of {ranks} ranks was still running after {timeout} s\n"
            f"--- stdout\n{result.stdout}--- stderr\n{result.stderr}",
            pytrace=False,
        )
    return result


def run_ddprun(
    folder: Path, script: str, options: Sequence[str], *words: str, timeout: float = 120.0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the program text `script`, as train.py in `folder`, with these words under ddprun with these options.

    timeout: seconds, met by a hang only.
    """
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "launch", *options, str(folder / "train.py"), *words],
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def python_path() -> str:
    """PYTHONPATH for a process that is to import this repository, installed or not."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
