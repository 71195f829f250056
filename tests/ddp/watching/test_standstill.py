"""Who is stopped while others recover is killed, with a reason; who is only slow is not."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp import losses
from ddp.watching.standstill import none_stands_still

pytestmark = pytest.mark.full


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"]
    started = [subprocess.Popen(command) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_the_stopped_one_is_killed(
    sleepers: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPRUN_REPORT", str(tmp_path))
    own = losses.Member(0, os.getpid())
    busy, stopped = (losses.Member(number, process.pid) for number, process in enumerate(sleepers, 1))
    monkeypatch.setattr(losses, "watching", lambda: SimpleNamespace(members=[own, busy, stopped]))
    sleepers[1].send_signal(signal.SIGSTOP)
    with none_stands_still(0.5):
        assert sleepers[1].wait(60) == -signal.SIGKILL
    assert losses.reason(stopped) == "stopped while others recovered: no answer for 0.5 s"
    assert sleepers[0].poll() is None
    assert losses.reason(busy) == ""


def test_who_goes_on_in_time_is_left_alone(
    sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "watching", lambda: SimpleNamespace(members=[losses.Member(1, sleepers[0].pid)]))
    sleepers[0].send_signal(signal.SIGSTOP)
    with none_stands_still(3600.0):
        time.sleep(0.6)
    assert sleepers[0].poll() is None
