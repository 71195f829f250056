"""An mpirun that does not end when the ranks of its job have: ddprun ends it, and says who is missing."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.jobs import LIMIT, PIDS, running

pytestmark = pytest.mark.full

# Starts two ranks, and beside them somebody who stays, as Hydra's agents for other hosts are; hears no polite request.
MPIRUN = """#!{python}
import os, signal, subprocess, sys, time
if "--version" in sys.argv:
    sys.exit(print("HYDRA build details: Version: 5.0.0"))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
agent = subprocess.Popen([sys.executable, "-c", {agent!r}])
command = sys.argv[sys.argv.index({python!r}):]
ranks = [
    subprocess.Popen(command, env=os.environ | {{"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank)}})
    for rank in range(2)
]
while True:
    time.sleep(1)
"""
HOSTS: list[list[str]] = [[], ["--host", "one:1,two:1"]]  # to the system they are one
AGENT = f"{PIDS}import time\ntime.sleep(3600)\n"
END = f"""{PIDS}import time
if os.environ["PMI_RANK"] == "1":
    while len(list(pathlib.Path().glob("pid.*"))) < 3: time.sleep(0.01)
    time.sleep(0.5)  # the guard that rank 0 has started is known to ddprun
    os._exit(3)
"""
FAILURE = f"""{PIDS}import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while len(list(pathlib.Path().glob("pid.*"))) < 3: time.sleep(0.01)
time.sleep(0.5 if os.environ["PMI_RANK"] == "1" else 3600)
sys.exit(3)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter with that mpirun beside it."""
    folder = tmp_path / "stays"
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(sys.executable)
    mpirun = folder / "mpirun"
    mpirun.write_text(MPIRUN.format(python=str(python), agent=AGENT))
    mpirun.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return python


@pytest.mark.parametrize("hosts", HOSTS)
def test_it_is_ended_and_who_is_missing_is_named(
    run: Callable, script: Callable, tmp_path: Path, python: Path, hosts: list[str]
) -> None:
    ended = run("-n", "2", *hosts, script(END), python=python)
    assert ended.returncode == 1
    words = "mpirun did not end when its ranks had and was killed; rank 1 on .* was not seen to finish\n"
    assert re.search(words, ended.stderr), ended.stderr
    assert running(tmp_path) == []


@pytest.mark.parametrize("hosts", HOSTS)
def test_ranks_that_it_leaves_when_one_has_failed_are_ended(
    run: Callable, script: Callable, tmp_path: Path, python: Path, hosts: list[str]
) -> None:
    """As Open MPI's mpirun that has locked itself up."""
    ended = run("-n", "2", *hosts, script(FAILURE), python=python)
    assert ended.returncode == 3
    assert "mpirun did not end" in ended.stderr
    assert running(tmp_path) == []


def test_ranks_that_have_become_another_program_are_waited_for(
    start: Callable, script: Callable, tmp_path: Path, python: Path
) -> None:
    """They say nothing any more, and work for longer than mpirun is waited for."""
    work = "import os, pathlib, time; time.sleep(7); pathlib.Path(f'done.{os.getpid()}').touch()"
    become = script(f"{PIDS}import sys\nos.execv(sys.executable, [sys.executable, '-c', {work!r}])\n")
    jobs = [start("-n", "2", *hosts, become, python=python) for hosts in HOSTS]
    for job in jobs:
        assert job.wait(LIMIT) == 1
        assert "ranks 0, 1 on " in job.stderr.read()
    assert sum(name.startswith("done.") for name in os.listdir(tmp_path)) == 4
    assert running(tmp_path) == []
