"""Starts the examples as a user would and reads what they print."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch.testing.process import ask_to_end_with_parent

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 240.0  # seconds, far above what any of these runs takes: it only turns a hang into a failure


def command(ranks: int, script: str, *arguments: object, options: Sequence[str] = ()) -> list[str]:
    """The words that run an example: plain Python for one rank, the launcher, with these options, for more."""
    launcher = [] if ranks == 1 else ["-m", "launch", "-n", str(ranks), *options]
    return [sys.executable, *launcher, script, *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with the packages on the path, installed or not, and one thread a rank.

    With more, OpenBLAS's threads wait for each other by spinning, which beside other processes costs up to 30 times
    the work itself.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **variables}


def run(argv: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end from the repository's root, output captured."""
    return subprocess.run(
        argv,
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        preexec_fn=ask_to_end_with_parent,
    )


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object on the last line of a run, which must have succeeded."""
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(last, dict)
    return last
