"""Runs the launcher as a user does: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TORCHRUN_VARIABLES
from tests.launch.jobs import as_from_a_terminal

LIMIT = 60  # seconds: far more than any of these jobs needs, so that only a hang meets it

Start = Callable[..., subprocess.Popen[str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment without settings of a user's shell that would change what the launcher decides."""
    for name in list(os.environ):
        settings = name.endswith("_NUM_THREADS") or name.startswith(("SLURM_", "OMPI_", "PMIX_", "PRTE_", "ALLSTRIDE_"))
        if settings or name in TORCHRUN_VARIABLES:
            monkeypatch.delenv(name)


@pytest.fixture
def start(environment: None, tmp_path: Path) -> Iterator[Start]:
    """Starts the launcher with the given arguments in `tmp_path`; it is killed after the test if still there."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, python: Path | str = sys.executable, **options: Any) -> subprocess.Popen[str]:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        given["preexec_fn"] = as_from_a_terminal
        # -P as with the installed command: a file called launch.py in the working directory must not matter.
        command = [str(python), "-P", "-m", "launch", *arguments]
        process = subprocess.Popen(command, cwd=tmp_path, **(given | options))
        started.append(process)
        return process

    yield start
    for process in started:
        with process:  # closes its pipes and waits
            process.kill()


@pytest.fixture
def run(start: Start) -> Run:
    """Like `start`, and waits until it has ended."""

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Writes a file into `tmp_path` and returns its name."""

    def script(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return script
