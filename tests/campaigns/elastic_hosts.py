"""An elastic job on two hosts that loses ranks of either, at random moments: it is to end with the same digest.

    python -m tests.campaigns.elastic_hosts                    # as root; 100 jobs of 4 seconds
    python -m tests.campaigns.elastic_hosts --jobs 10 --seed 3

Two network namespaces are the hosts (`tests.ddp.two_hosts`), with two ranks on each. One rank, one of each host or all
of one are killed, crash or stop while gradients of 4 MB travel (`tests.campaigns.elastic_hosts_job`). Printed is a line
for each job that went wrong, and a summary: how many seconds from the fault to the next step. Exit code 1 where one
went wrong.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.ddp.two_hosts import Hosts, two_hosts
from tests.launch.on_two_hosts import ROOT, ddprun, hostfile_of, prepare

_VICTIMS = ((0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 2))
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
_WITHIN = 0.6  # seconds in which they are struck; the job takes longer
_LIMIT = 60.0  # seconds of a job


class Ended(NamedTuple):
    """A job's exit code, what it printed at the end, the seconds from the fault to the next step, and its errors."""

    code: int
    last: dict[str, object]
    seconds: float
    errors: str


def run(hosts: Hosts, folder: Path, environment: Mapping[str, str], victims: Mapping[int, float], number: int) -> Ended:
    """One job."""
    (folder / "strike.json").write_text(json.dumps({"victims": victims, "signal": number}))
    (folder / "struck").unlink(missing_ok=True)
    options = ["-n", "4", "--hostfile", str(hostfile_of(hosts, folder)), "--elastic", "1"]
    job = subprocess.Popen(
        ddprun(hosts, [*options, str(ROOT / "tests/campaigns/elastic_hosts_job.py")]),
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, errors = job.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        job.terminate()
        out, errors = job.communicate()
        return Ended(124, {}, 0.0, errors)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    recovered = [line["recovered"] for line in lines if "recovered" in line]
    struck = float((folder / "struck").read_text()) if victims else 0.0
    last = next((line for line in lines if "digest" in line), {})
    return Ended(job.returncode, last, max(recovered, default=struck) - struck, errors)


def strike(hosts: Hosts, folder: Path, jobs: int, seed: int) -> int:
    """Runs so many jobs, and prints what came of them; returns how many went wrong."""
    random.seed(seed)
    environment = prepare(hosts, folder)
    undisturbed = run(hosts, folder, environment, {}, 0)
    seconds: dict[signal.Signals, list[float]] = {number: [] for number in _SIGNALS}
    wrong = 0
    for place in range(jobs):
        chosen, number = random.choice(_VICTIMS), random.choice(_SIGNALS)
        after = random.random() * _WITHIN
        ended = run(hosts, folder, environment, dict.fromkeys(chosen, after), number)
        expected = {**undisturbed.last, "ranks": 4 - len(chosen)}
        seconds[number].append(ended.seconds)
        if ended.code or ended.last != expected:
            wrong += 1
            print(f"job {place}: {number.name} of {chosen} after {after:.3f} s: code {ended.code}, {ended.last}")
            print(ended.errors, flush=True)
    for number, times in seconds.items():
        if times:
            middle, most = statistics.median(times), max(times)
            print(f"{number.name}: {len(times)}, to the next step {middle:.2f} s, at most {most:.2f}")
    print(f"{jobs - wrong} of {jobs} ended with the digest of an undisturbed job")
    return wrong


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with two_hosts() as hosts, tempfile.TemporaryDirectory() as name:
        sys.exit(bool(strike(hosts, Path(name), given.jobs, given.seed)))


if __name__ == "__main__":
    main()
