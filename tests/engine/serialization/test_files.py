"""What `save` does to the file system: replaces regular files only, whole, and leaves nothing behind."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import engine
from engine.serialization import files

ROOT = Path(__file__).resolve().parents[3]


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "step1.pt", tmp_path / "latest.pt"
    engine.save([1], real)
    link.symlink_to(real.name)
    engine.save([2], link)
    assert link.is_symlink()
    assert engine.load(real) == [2]
    assert sorted(os.listdir(tmp_path)) == ["latest.pt", "step1.pt"]


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latest.pt").symlink_to(Path("folder", "first.pt"))
    engine.save([3], tmp_path / "latest.pt")
    assert engine.load(tmp_path / "folder" / "first.pt") == [3]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content: list[bytes] = []
    reader = threading.Thread(target=lambda: content.append(pipe.read_bytes()))
    reader.start()
    engine.save({"w": engine.ones(2)}, pipe)
    reader.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    (tmp_path / "file").write_bytes(content[0])
    assert engine.load(tmp_path / "file")["w"].tolist() == [1.0, 1.0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_written_into(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.open("wb").close()
    except PermissionError as error:
        pytest.skip(f"no devices in this container: {error}")
    engine.save([1], device)
    assert stat.S_ISCHR(device.stat().st_mode)


def test_permissions_are_those_of_any_new_file_or_of_the_one_replaced(tmp_path: Path) -> None:
    engine.save([1], tmp_path / "ours")
    (tmp_path / "any").touch()
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "any").stat().st_mode)
    (tmp_path / "ours").chmod(0o640)
    engine.save([2], tmp_path / "ours")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o640


def test_file_and_folder_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def sync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def replace(source: Path, target: Path) -> None:
        done.append("replace")
        Path(source).rename(target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    engine.save([1], tmp_path / "a")
    assert done == ["file", "replace", "folder"]


_DIES_WHILE_IT_WRITES = """
import os, signal, sys
from engine.serialization import files
with files.replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_writer_left_goes_with_the_next_save(tmp_path: Path) -> None:
    path = tmp_path / "step[4].pt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        died = subprocess.run([sys.executable, "-c", _DIES_WHILE_IT_WRITES, str(path)], env=environment, check=False)
        assert died.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1  # the second writer removed what the first had left
    (tmp_path / ".other.pt.01234567.partial").touch()
    engine.save([1], path)
    assert sorted(os.listdir(tmp_path)) == [".other.pt.01234567.partial", "step[4].pt"]


def test_a_file_that_is_being_written_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with files.replacing(path) as slow:
        slow.write(b"first")
        with files.replacing(path) as fast:
            fast.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_nothing_stays_of_a_write_that_fails(tmp_path: Path, error: BaseException) -> None:
    def write() -> None:
        with files.replacing(tmp_path / "a") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        engine.save([1], tmp_path / "nowhere" / "a")
