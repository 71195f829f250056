"""What the guard of a host removes of a job that is gone."""

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp.losses import words
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


def test_the_step_is_what_ranks_of_this_host_have_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPRUN_REPORT", str(tmp_path))
    folders = [str(tmp_path), str(tmp_path / "none")]
    assert guard.noted_step(folders) == 0
    words._note.cache_clear()
    for step in (9, 10, 3):  # which is where it has gone on from a checkpoint
        words.note_step(step)
        assert guard.noted_step(folders) == step
    words._note.cache_clear()


def test_only_who_is_stopped_all_the_time_is_killed() -> None:
    mark = f"DDPRUN_JOB={os.urandom(8).hex()}"
    name, _, value = mark.partition("=")
    command = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"]
    environments = {name: value}, {name: value}, {}  # the last one is nobody of the job
    processes = [subprocess.Popen(command, env=each) for each in environments]
    seen: dict[int, tuple[float, float]] = {}

    def ask(seconds: float) -> None:
        guard.kill_stopped(seconds, [process.pid for process in processes], mark, seen)

    try:
        for process in processes[1:]:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        ask(60)
        assert set(seen) == {process.pid for process in processes[1:]}
        assert all(process.poll() is None for process in processes)
        seen[processes[1].pid] = (time.monotonic() - 61, time.monotonic() - 2)
        ask(60)  # it was not asked for some time: who knows whether it was stopped
        assert processes[1].poll() is None
        for process in processes[1:]:
            seen[process.pid] = (time.monotonic() - 61, time.monotonic())
        ask(60)
        assert processes[1].wait(10) == -signal.SIGKILL
        assert (processes[0].poll(), processes[2].poll()) == (None, None)
    finally:
        for process in processes:
            process.kill()
            process.wait()
