"""Where the campaigns' ranks train, and how long a step takes there: on this host, or on several behind a switch."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ddp.forecast import parse_link
from tests.campaigns.forecast import ONE_THREAD, measured
from tests.ddp.switched_hosts import switched_hosts
from tests.launch.on_two_hosts import prepare


@contextlib.contextmanager
def step_timer(hosts: int, link: str, ranks: int) -> Iterator[Callable[[list[str]], float]]:
    """A function of the words of a program like `benchmarks/training.py`: milliseconds of its step on so many ranks.

    hosts: on which they are evenly; 1: this one, whatever `link` says.
    """
    if hosts == 1:
        yield lambda words: _here(words, ranks)
        return
    with switched_hosts(hosts, parse_link(link)) as those, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = prepare(those, folder) | ONE_THREAD
        yield lambda words: float(measured(those, folder, environment, words, ranks)["step_ms"])


def _here(words: list[str], ranks: int) -> float:
    command = [sys.executable, "-m", "launch", "-n", str(ranks), *words]
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["step_ms"])
