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
from ddp.watching import standstill
from ddp.watching.standstill import none_stands_still
from tests.launch.jobs import wait_until

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
    monkeypatch.setattr(losses, "watching", lambda: SimpleNamespace(members=[own, busy, stopped], far_reasons={}))
    sleepers[1].send_signal(signal.SIGSTOP)
    with none_stands_still(0.5):
        assert sleepers[1].wait(60) == -signal.SIGKILL
    assert losses.reason(stopped) == "stopped while others recovered: no answer for 0.5 s"
    assert sleepers[0].poll() is None
    assert losses.reason(busy) == ""


def test_who_goes_on_in_time_is_left_alone(
    sleepers: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        losses, "watching", lambda: SimpleNamespace(members=[losses.Member(1, sleepers[0].pid)], far_reasons={})
    )
    sleepers[0].send_signal(signal.SIGSTOP)
    with none_stands_still(3600.0):
        time.sleep(0.6)
    assert sleepers[0].poll() is None


def test_what_was_seen_before_counts(
    sleepers: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the watchdog sees it while it waits: then one that is stopped is not waited for once more."""
    monkeypatch.setenv("DDPRUN_REPORT", str(tmp_path))
    stopped = losses.Member(1, sleepers[0].pid)
    monkeypatch.setattr(losses, "watching", lambda: SimpleNamespace(members=[stopped], far_reasons={}))
    clock = 0.0
    looks: list[float] = []

    def tell() -> float:
        looks.append(clock)
        return clock

    monkeypatch.setattr(standstill, "time", SimpleNamespace(monotonic=tell))
    sleepers[0].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleepers[0].pid, os.WSTOPPED)
    for now in (0, 3, *range(4, 104)):  # after the first one there is a pause
        clock = float(now)
        assert standstill.look([stopped]) == []
    seen = len(looks)
    with none_stands_still(100.5):
        wait_until(lambda: len(looks) >= seen + 3)  # the third begins after the second was judged
        assert sleepers[0].poll() is None
    with none_stands_still(100.0):
        assert sleepers[0].wait(60) == -signal.SIGKILL
    assert losses.reason(stopped) == "stopped while others recovered: no answer for 100 s"


def test_guards_of_other_hosts_are_asked_by_one_of_each(
    sleepers: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    monkeypatch.setenv("DDPRUN_LINE", str(write))
    own, near = losses.Member(1, os.getpid()), losses.Member(0, sleepers[0].pid)
    far = [losses.Member(number, 70 + number, host="another") for number in (2, 3)]
    watch = SimpleNamespace(members=[near, own, *far], far_reasons={})
    monkeypatch.setattr(losses, "watching", lambda: watch)
    with none_stands_still(0.6):
        time.sleep(1.0)
        assert watch.far_reasons == {}  # the first of this host asks
        sleepers[0].kill()
        sleepers[0].wait()
        assert os.read(read, 25) == b"stopped another 0.6 72 73\n"[:25]
        deadline = time.monotonic() + 60
        while not watch.far_reasons and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watch.far_reasons[far[0].process] == "stopped while others recovered: no answer for 0.6 s"
        watch.members = [own, far[0]]  # the other is lost
    assert [*watch.far_reasons] == [far[1].process]
    os.close(read)
    os.close(write)
