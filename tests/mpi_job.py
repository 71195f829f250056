"""Starting `mpirun` for tests, and ending what it started: processes, not pytest.

`run_job` runs a whole program on several ranks and is for tests of faults: what a job does when a rank raises, dies or
sleeps. Tests of what ranks compute together are marked `mpi` instead, see `tests/mpi_plugin.py`.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import LaunchError
from launch.find import find_mpirun

ROOT = Path(__file__).resolve().parent.parent

_GRACE = 3.0  # seconds between asking a job to end and killing it


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
            process = start_process(command, out_file.fileno(), err_file.fileno(), environment or {})
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


def python_path() -> str:
    """PYTHONPATH for a process that is to import this repository, installed or not."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def mpirun_command(ranks: int) -> list[str]:
    """The words that start `ranks` processes. The mpirun beside this Python comes first: it belongs to its mpi4py."""
    try:
        mpirun = find_mpirun(sys.executable, os.environ.get("PATH", ""))
    except LaunchError as error:
        pytest.fail(f"{error}; pytest -m 'not mpi' leaves these tests out", pytrace=False)
    return [str(mpirun), "-n", str(ranks)]


def start_process(
    command: Sequence[str], stdout: int, stderr: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start mpirun in a session of its own, with the settings that several ranks on few, busy cores need."""
    settings = {
        "PYTHONPATH": python_path(),
        # More ranks than cores: let them share cores, and let a rank that waits give its core away.
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_PIN": "off",
        "PYTHONUNBUFFERED": "",  # a line and its end in one piece: Hydra does not wait for the second
        # What ddp/bootstrap.py sets, for programs that start MPI without it.
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_btl": "^ofi",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    }
    if os.geteuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, **settings, **environment},
        start_new_session=True,
    )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End mpirun and everything it started: ask, then kill."""
    if process.poll() is None:
        process.terminate()  # mpirun passes it on to the ranks
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in _members(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended meanwhile


def _members(session: int) -> list[int]:
    """The processes of a session: mpirun gives each rank a process group of its own, but not a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if int(fields[3]) == session:
            found.append(int(entry.parent.name))
    return found
