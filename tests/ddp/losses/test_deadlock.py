"""After a loss, a process that MPI has brought to a standstill ends itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddp.losses import deadlock, nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a kernel's file says where a thread sleeps")

# The main thread runs some code as if it stood in a file.
PROGRAM = """
import sys, threading, time
from ddp.losses import deadlock
deadlock._PERIOD = 0.02
deadlock.begin()
lock = threading.Lock()
lock.acquire()
exec(compile(sys.argv[1], sys.argv[2], "exec"))
deadlock.end()
print("went on")
"""


def run(code: str, file: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, code, file],
        env={**os.environ, "DDPRUN_REPORT": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_thread_that_sleeps_in_a_lock_ends_its_process(tmp_path: Path) -> None:
    done = run("lock.acquire()", str(Path(deadlock.__file__).with_name("watch.py")), tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    reasons = [path.read_text() for path in (tmp_path / "lost").iterdir()]
    assert len(reasons) == 1
    assert "in a deadlock inside of MPI after another loss" in reasons[0]


@pytest.mark.parametrize(
    ("code", "file"),
    [
        ("lock.acquire(timeout=1.0)", "train.py"),  # it waits for something of the user's
        ("lock.acquire(timeout=1.0)", nursery.__file__),  # there MPI sleeps
        ("time.sleep(1.0)", deadlock.__file__),
        ("for _ in range(50): lock.acquire(timeout=0.02)", deadlock.__file__),  # it moves
    ],
)
def test_who_waits_for_something_else_goes_on(code: str, file: str, tmp_path: Path) -> None:
    done = run(code, file, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "went on\n"
