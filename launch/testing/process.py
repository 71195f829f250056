"""Starting `mpirun` for tests, and ending what it started, also when the process that started it is killed."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launch import LaunchError
from launch.find import find_mpirun

_GRACE = 3.0  # seconds between asking a job to end and killing it
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def mpirun_command(ranks: int) -> list[str]:
    """The words that start `ranks` processes. The mpirun beside this Python comes first: it belongs to its mpi4py."""
    try:
        mpirun = find_mpirun(sys.executable, os.environ.get("PATH", ""))
    except LaunchError as error:
        pytest.fail(f"{error}; pytest -m 'not mpi' leaves these tests out", pytrace=False)
    return [str(mpirun), "-n", str(ranks)]


def start_process(
    command: Sequence[str],
    stdout: int,
    stderr: int,
    environment: Mapping[str, str],
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start mpirun in a session of its own, with the settings that several ranks on few, busy cores need.

    It is asked to end, and with it the ranks, when this process ends in whatever way. environment: variables added to
    this process's; directory: where it runs.
    """
    settings = {
        # More ranks than cores: let them share cores, and let a rank that waits give its core away.
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_PIN": "off",
        "PYTHONUNBUFFERED": "",  # a line and its end in one piece: Hydra does not wait for the second
        # What ddp/world/bootstrap.py sets, for programs that start MPI without it.
        "OMPI_MCA_osc": "^ucx",
        "OMPI_MCA_btl": "^ofi",
        "OMPI_MCA_pml": "^ucx",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    }
    if os.geteuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=directory,
        env={**os.environ, **settings, **environment},
        start_new_session=True,
        preexec_fn=ask_to_end_with_parent,
    )


def ask_to_end_with_parent() -> None:
    """Have this process asked to end (SIGTERM) when the one that started it is gone; kept by what it executes."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_with_parent() -> None:
    """Have this process killed when the one that started it is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
