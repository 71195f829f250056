"""The folders of a job: they go with it, and with a later job if everybody who would remove them was killed."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch import LaunchError, folders, place

LONG_AGO = 1_000_000_000


@pytest.fixture
def name() -> Iterator[str]:
    name = uuid.uuid4().hex[:16]
    yield name
    memory = Path(place.memory_folder(name))
    if memory.is_dir():
        memory.rmdir()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"TMPDIR": str(tmp_path)}


def start_another(environ: dict[str, str]) -> None:
    with folders.made(environ, uuid.uuid4().hex[:16]):
        pass


def left_behind(tmp_path: Path, name: str) -> Path:
    """The folder of a job whose ddprun and guard were killed long ago."""
    folder = tmp_path / f"ddprun-{name}"
    folder.mkdir(0o700)
    (folder / f"lock.{os.uname().nodename}").touch()
    (folder / "prted").mkdir()
    (folder / "prted" / "file").touch()
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder


def test_they_go_with_the_job(tmp_path: Path, environ: dict[str, str], name: str) -> None:
    with folders.made(environ, name) as (made, _):
        assert made == [str(tmp_path / f"ddprun-{name}"), place.memory_folder(name)]
        assert Path(made[0]).is_dir()
        Path(made[1]).mkdir()
    assert not any(map(os.path.exists, made))


def test_those_of_a_dead_job_go_with_the_next_one(tmp_path: Path, environ: dict[str, str], name: str) -> None:
    folder, memory = left_behind(tmp_path, name), Path(place.memory_folder(name))
    memory.mkdir(0o700)
    start_another(environ)
    assert not folder.exists()
    assert not memory.exists()


def test_those_of_a_job_that_lives_stay(tmp_path: Path, environ: dict[str, str], name: str) -> None:
    with folders.made(environ, name) as (made, lock):
        os.utime(made[0], (LONG_AGO, LONG_AGO))
        start_another(environ)
        assert Path(made[0]).is_dir()
        guards = os.dup(lock)  # the guard lives when ddprun has been killed
        os.close(lock)
        start_another(environ)
        assert Path(made[0]).is_dir()
        os.dup2(guards, lock)
        os.close(guards)


def test_those_of_a_rank_that_lives_stay(
    tmp_path: Path, environ: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = left_behind(tmp_path, name)
    monkeypatch.setattr(folders.guard, "members", lambda mark: {1} if mark == f"DDPRUN_JOB={name}" else set())
    start_another(environ)
    assert folder.is_dir()


@pytest.mark.parametrize("what", ["new", "of another host", "open to others", "a link", "not ours by its name"])
def test_what_is_not_known_to_be_a_dead_jobs_stays(
    tmp_path: Path, environ: dict[str, str], name: str, what: str
) -> None:
    folder = left_behind(tmp_path, name)
    if what == "new":
        os.utime(folder)
    elif what == "of another host":
        (folder / f"lock.{os.uname().nodename}").rename(folder / "lock.elsewhere")
        os.utime(folder, (LONG_AGO, LONG_AGO))
    elif what == "open to others":
        folder.chmod(0o755)
    elif what == "a link":
        target = folder.rename(tmp_path / "target")
        folder.symlink_to(target)
    else:
        folder = folder.rename(tmp_path / f"ddprun-{name}-kept")
    start_another(environ)
    assert (folder / "prted" / "file").exists()


def test_there_is_no_room(tmp_path: Path) -> None:
    with (
        pytest.raises(LaunchError, match=r"no folder for the job's sockets can be made: .*TMPDIR says where"),
        folders.made({"TMPDIR": str(tmp_path / "missing")}, "0" * 16),
    ):
        pass
