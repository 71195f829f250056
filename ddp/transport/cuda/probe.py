"""Can this MPI send device memory? Two processes try it; what they saw is remembered for each MPI library.

    python -m ddp.transport.cuda.probe      # try it now and say what was seen

No flag of a library is asked: an MPI built for GPUs may lack a part at run time, one that says nothing may do it, and
one that takes a device pointer for a host pointer crashes. So two processes of their own, started by `ddprun`, send
device buffers of several sizes to each other and compare every byte. A crash, a hang or a wrong byte means no.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.memory.backend import require_cupy

TIMEOUT = 60.0  # seconds; starting two processes and CuPy takes the most of what is needed

# Bytes of a message: one that goes along with its envelope, one of several pieces, one by rendezvous.
_SIZES = (8, 70_001, 4_000_003)
_SEEN = "device memory arrived:"  # what the child says

# What tells a process which rank of which job it is: the children are a job of their own.
_OF_THE_JOB = (
    *("PMIX_", "PMI_", "SLURM_", "OMPI_COMM_", "OMPI_UNIVERSE_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_NUM_"),
    *("OMPI_MCA_orte_", "OMPI_MCA_ess", "PRTE_LAUNCHED", "ALLSTRIDE_", "HYDRA_", "MPI_LOCAL", "MPIEXEC_"),
)


class Verdict(NamedTuple):
    """Whether device memory arrives, and what was seen, in words."""

    works: bool
    why: str


def find_verdict() -> Verdict:
    """What was seen of the MPI library, driver and GPU of this process; if nothing yet, the probe runs now."""
    known = _read()
    found = known.get(_key())
    return probe() if found is None else Verdict(bool(found[0]), str(found[1]))


def probe(command: Sequence[str] | None = None, timeout: float = TIMEOUT) -> Verdict:
    """Runs the two processes, and remembers what they saw. command: what is started, for tests."""
    verdict = _run(
        command or [sys.executable, "-m", "launch", "-n", "2", "-m", "ddp.transport.cuda.probe", "--child"], timeout
    )
    if command is None:
        _write(verdict)
    return verdict


def _run(command: Sequence[str], timeout: float) -> Verdict:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(os.environ),
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()  # ddprun leaves a guard, which ends what is left of its job
            process.wait()
        output.seek(0)
        said = output.read().decode(errors="replace")
    lines = [line for line in said.splitlines() if line.strip()]
    if code is None:
        return Verdict(False, f"the probe of this MPI with device memory was not through after {timeout:g} s")
    if code == 0 and (seen := [line for line in lines if _SEEN in line]):
        return Verdict(True, seen[0][seen[0].index(_SEEN) :])
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    return Verdict(False, f"this MPI does not send device memory (the probe ended with exit code {code}{last})")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_OF_THE_JOB)}


# --- what is remembered -----------------------------------------------------------------------------------------------


def _key() -> str:
    """What the verdict depends on."""
    from mpi4py import MPI

    runtime = require_cupy().cuda.runtime
    gpu = runtime.getDeviceProperties(0)["name"].decode()
    return f"{MPI.Get_library_version().splitlines()[0].strip()} | {gpu} | driver {runtime.driverGetVersion()}"


def _file() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen or Path.home() / ".cache") / "allstride" / "gpu_mpi.json"


def _read() -> dict[str, Any]:
    try:
        known = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there yet, or damaged: the probe runs again
        return {}
    return known if isinstance(known, dict) else {}


def _write(verdict: Verdict) -> None:
    place = _file()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as new:
            json.dump({**_read(), _key(): list(verdict)}, new, indent=1)
        Path(new.name).replace(place)
    except OSError:  # a home that cannot be written: each job probes for itself
        return


# --- the child --------------------------------------------------------------------------------------------------------


def try_it() -> None:
    """Collective over two ranks: sends device memory both ways. Raises RuntimeError where it does not arrive."""
    from mpi4py import MPI

    cupy = require_cupy()
    comm = MPI.COMM_WORLD
    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
    other = 1 - comm.rank
    for nbytes in _SIZES:
        sent, received = cupy.asarray(_pattern(nbytes, comm.rank)), cupy.zeros(nbytes, np.uint8)
        cupy.cuda.get_current_stream().synchronize()
        buffers = [MPI.buffer.fromaddress(array.data.ptr, nbytes) for array in (received, sent)]
        requests = [comm.Irecv([buffers[0], MPI.BYTE], other), comm.Isend([buffers[1], MPI.BYTE], other)]
        MPI.Request.Waitall(requests)
        wrong = int(np.count_nonzero(received.get() != _pattern(nbytes, other)))
        if sum(comm.allgather(wrong)):
            raise RuntimeError(f"{wrong} of {nbytes} bytes of device memory arrived wrongly")
    if comm.rank == 0:
        print(f"{_SEEN} messages of {', '.join(f'{nbytes:,}' for nbytes in _SIZES)} bytes, both ways")


def _pattern(nbytes: int, rank: int) -> NDArray[np.uint8]:
    """What the rank sends. Made on the host: no kernel is compiled while a job waits for the verdict."""
    return (np.arange(nbytes) * (3 + 2 * rank) % 251).astype(np.uint8)


if __name__ == "__main__":
    if "--child" in sys.argv:
        try_it()
    else:
        seen = probe()
        print(f"{'yes' if seen.works else 'no'}: {seen.why}")
