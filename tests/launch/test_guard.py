"""What the guard of a host removes of a job that is gone."""

import mmap
import os
import time
from pathlib import Path

import pytest

from launch import guard


def test_memory_that_mpich_left_is_removed_and_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_MEMORY", str(tmp_path))
    began = time.time() - 10
    for name in ("mpich_shm_1_0", "mpich_shm_used_0", "mpich_shm_older_0", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    os.utime(tmp_path / "mpich_shm_older_0", (began - 1, began - 1))
    folder = tmp_path / "job"
    (folder / "inside").mkdir(parents=True)
    with (tmp_path / "mpich_shm_used_0").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        guard.sweep([str(folder)], began)
    assert {path.name for path in tmp_path.iterdir()} == {"mpich_shm_used_0", "mpich_shm_older_0", "other"}
