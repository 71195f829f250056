"""Where Open MPI's ranks of a host share memory: in /dev/shm, or where that is too small in the session's folder."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import place
from tests.examples.running import ROOT, environment
from tests.launch.jobs import this_mpi

BACKING = "OMPI_MCA_btl_sm_backing_directory"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of rank 1 of two on its host, whose shared memory and session folder are in `tmp_path`."""
    session = tmp_path / f"prted.{os.getppid()}"
    session.mkdir()
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(place, "SHARED_MEMORY", str(tmp_path / "shm"))
    found = {
        place.JOB_VARIABLE: "job",
        "PMIX_SERVER_TMPDIR": str(session),
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    monkeypatch.setattr(os, "environ", found)
    return found


def no_line(environ: object) -> None:
    raise AssertionError("a line is the first rank's")


@pytest.mark.parametrize(("free", "inside"), [(32 << 20, "shm/ddprun-job"), ((32 << 20) - 4096, "prted.{}")])
def test_it_is_where_the_files_of_all_ranks_fit(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, inside: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=free // 4096, f_frsize=4096))
    place.join(no_line)
    assert environ[BACKING] == str(tmp_path / inside.format(os.getppid()))


def test_a_folder_that_others_can_write_is_not_taken(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "shm" / "ddprun-job").mkdir(mode=0o777)
    (tmp_path / "shm" / "ddprun-job").chmod(0o777)
    place.join(no_line)
    assert environ[BACKING] == environ["PMIX_SERVER_TMPDIR"]


def test_what_the_user_has_chosen_stays(environ: dict[str, str]) -> None:
    environ[BACKING] = "/elsewhere"
    place.join(no_line)
    assert environ[BACKING] == "/elsewhere"


def test_ranks_of_open_mpi_4_know_one_folder_of_its_files(environ: dict[str, str]) -> None:
    """It does not start them where they are told of two."""
    environ |= {"OMPI_MCA_orte_tmpdir_base": "/tmp/job", "OMPI_MCA_orte_local_tmpdir_base": "/tmp/job"}
    place.join(no_line)
    assert "OMPI_MCA_orte_local_tmpdir_base" not in environ


def test_without_either_it_is_left_to_mpi(environ: dict[str, str], tmp_path: Path) -> None:
    del environ["PMIX_SERVER_TMPDIR"]
    (tmp_path / "shm").rmdir()
    place.join(no_line)
    assert BACKING not in environ


@pytest.mark.full
@pytest.mark.parametrize("size", ["4k", "16m"])
def test_ranks_start_where_it_is_too_small(size: str, tmp_path: Path) -> None:
    """As in a container: a mount that only the job sees. Open MPI itself does not start there."""
    if "Open MPI" not in this_mpi().name:
        pytest.skip("this MPI keeps what its ranks share in /dev/shm and nowhere else")
    alone = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh"]
    tried = subprocess.run([*alone, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no mount of its own can be made here: {tried.stderr.strip()}")
    script = tmp_path / "sum.py"
    script.write_text(
        "from mpi4py import MPI\n"
        "import numpy as np\n"
        "total = np.ones(1 << 20)\n"
        "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)\n"
        "print(total.min(), total.max(), flush=True)\n"
    )
    job = [*alone, sys.executable, "-m", "launch", "-n", "2", str(script)]
    done = subprocess.run(job, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2.0 2.0"] * 2
