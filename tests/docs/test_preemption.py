"""The script of docs/howto/preemption.md with real signals: what it saves, and that it goes on there."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch.testing.process import ask_to_end_with_parent
from tests.docs.pages import DOCS, LIMIT, blocks
from tests.mpi_job import python_path

Start = Callable[[int], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the page's script on two ranks for so many steps."""
    (script,) = (block for block in blocks(DOCS / "howto/preemption.md") if block.file)
    (tmp_path / script.file).write_text(script.text)
    monkeypatch.setenv("PYTHONPATH", python_path())
    started = []

    def start(steps: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "launch", "-n", "2", "--grace", "60", script.file, str(steps)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, preexec_fn=ask_to_end_with_parent, **pipes))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_job_that_is_told_to_end_saves_and_goes_on(start: Start, number: signal.Signals) -> None:
    process = start(10**9)
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    saved = re.fullmatch(r"saved at step (\d+)\n", out)
    assert saved is not None
    last = int(saved[1])
    out, err = start(last + 5).communicate(timeout=LIMIT)
    assert out == f"goes on at step {last}\nsaved at step {last + 5}\n", err
