"""Kills a rank of one elastic job every few seconds, for as long as it is told, and replacements as they come.

    python -m tests.campaigns.soak                             # 300 failures, one every two seconds: ten minutes
    python -m tests.campaigns.soak --failures 20 --period 1.5
    python -m tests.campaigns.soak --launcher 4      # mpirun may grow by 4 MB, and not by 64, before it is started anew
    python -m tests.campaigns.soak --failures 100 --period 0.7 --storm      # faster than ranks recover

tests/campaigns/soak_job.py is the job. Ranks are killed at random, but for the oldest one, whose memory and open files
are looked at from the first failure to the last: it lives until it gives its place away. Asked at the end: did the job
end well, with the digest of one rank that nobody disturbed, had every failure its replacement, was the oldest rank
never larger than young ones but for what Open MPI keeps of so many processes, and mpirun but for what PMIx keeps of
each, and never by more than it may. Exit code 1 where it was not.

In a storm any rank is killed that is not the last one, also one that recovers, or has just come. MPI may crash then,
and the job is started again (docs/howto/elastic.md). Sizes are not judged.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ddp.losses.roles import MOST_MET
from launch import mpirun
from tests.campaigns.elastic import ROOT, digest_of

_STORM = 0.15, 1.0  # seconds between two kills

# KiB that a process keeps of each one that it has seen come. PMIx holds 82 (the data of its namespace, three hash
# tables of 22 above all), the TCP transport 40 and what it was to receive next, each communicator that is not freed 12;
# nothing is Python's or ours (a count of all that malloc gave, by who asked for it). What the heap cannot give back
# between them comes to it.
_KEPT = 800
# The same of mpirun: what PMIx 5 sends to those who ask for another process (get_job_data in pmix_server_get.c), and
# what PRRTE publishes of each that starts. 210 where PRRTE is older than 3.0.13 (Open MPI 5.0.9), on a small machine.
_LAUNCHER_KEPT = 100
_ONCE = 4 << 10  # KiB that mpirun gets at its first failures, and never again
_BURST = 2 << 10  # KiB by which mpirun may grow before it is asked to end, and until it has

# ddprun, with another limit.
_DDPRUN = "import sys; from launch import __main__, mpirun; mpirun.MOST_KEPT = {}; sys.exit(__main__.main())"

_RENEWED = "mpirun has grown too large"  # how ddprun begins to say that it started another one


class Sizes(NamedTuple):
    """Of a job at one moment: KiB of memory of the oldest rank, its open files; KiB of each of the others, in the mean,
    and of mpirun.
    """

    oldest: int
    files: int
    others: int
    launcher: int


def command(ranks: int, launcher: int, options: Sequence[str]) -> list[str]:
    """launcher: KiB by which mpirun may grow."""
    job = "-n", str(ranks), *options, "-m", "tests.campaigns.soak_job"
    return [sys.executable, "-c", _DDPRUN.format(launcher), *job]


def environment(folder: Path, steps: int, seconds: float) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"SOAK_FOLDER": str(folder), "SOAK_STEPS": str(steps), "SOAK_SECONDS": str(seconds)}
    return {**os.environ, **settings, "PYTHONPATH": path}


def ranks_in(folder: Path) -> dict[int, tuple[int, int]]:
    """By process: when its last step was, and in how many ranks."""
    found = {}
    for path in folder.glob("rank-*"):
        with contextlib.suppress(ValueError):  # it is just being written
            pid, step, size = map(int, path.read_text().split())
            found[pid] = step, size
    last = max((step for step, _ in found.values()), default=0)
    return {pid: each for pid, each in found.items() if each[0] >= last - 1 and Path(f"/proc/{pid}").exists()}


def of_status(pid: int, name: str) -> int:
    """A number that the kernel tells of a process; 0 where it tells none, as of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def sizes_of(oldest: int, ranks: Iterable[int]) -> Sizes:
    """Of a job, of whose ranks one is the oldest."""
    others = [size for pid in ranks if pid != oldest and (size := of_status(pid, "RssAnon"))]
    files = len(os.listdir(f"/proc/{oldest}/fd"))
    launcher = of_status(of_status(oldest, "PPid"), "RssAnon")
    return Sizes(of_status(oldest, "RssAnon"), files, int(statistics.mean(others or [0])), launcher)


def soak(ranks: int, failures: int, period: float, storm: bool, launcher: int, folder: Path) -> bool:
    """Runs it and prints what came of it; returns whether all is as it should be.

    launcher: KiB by which mpirun may grow.
    Raises RuntimeError where the undisturbed job does not end well.
    """
    each = 0.05
    steps = int(failures * period / each)
    alone = folder / "alone"
    alone.mkdir()
    quiet = subprocess.run(
        command(1, launcher, []),
        cwd=ROOT,
        env=environment(alone, steps, 0.0),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if quiet.returncode != 0:
        raise RuntimeError(f"the undisturbed job ended with {quiet.returncode}:\n{quiet.stdout}{quiet.stderr}")
    expected = digest_of(quiet.stdout)
    errors = (folder / "stderr").open("w")
    job = subprocess.Popen(
        command(ranks, launcher, ["--elastic", f"1:{ranks}", "--max-restarts", str(failures if storm else 1)]),
        cwd=ROOT,
        env=environment(folder, steps, each),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    chance = random.Random(1)
    struck = 0
    known: dict[int, None] = {}  # in the order of their coming
    sizes: list[Sizes] = []
    deadline = time.monotonic() + 120 + 5 * failures * period  # of a job that stands still
    while job.poll() is None and struck < failures and time.monotonic() < deadline:
        time.sleep(chance.uniform(*_STORM) if storm else period)
        there = ranks_in(folder)
        whole = len(there) == ranks and {size for _, size in there.values()} == {ranks}
        if len(there) < 2 if storm else not whole:
            continue  # the last one is not replaced yet
        known.update(dict.fromkeys(sorted(there)))
        oldest = next(pid for pid in known if pid in there)
        sizes.append(sizes_of(oldest, there))
        os.kill(chance.choice([pid for pid in there if storm or pid != oldest]), signal.SIGKILL)
        struck += 1
    try:
        out, _ = job.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        job.terminate()  # ddprun ends all, with another code than 0
        out, _ = job.communicate()
    errors.close()
    said = (folder / "stderr").read_text()
    replaced = said.count("replaced from step")
    found = digest_of(out) if job.returncode == 0 else ""
    sizes = sizes or [Sizes(0, 0, 0, 0)]
    young = statistics.median(each.others for each in sizes)
    largest = max(each.oldest for each in sizes)
    renewed, restarted = said.count(_RENEWED), said.count("job is started again")
    sizes_of_launcher = [each.launcher for each in sizes]
    later = sizes_of_launcher[len(sizes) // 2 :]  # until then mpirun also gets what it needs once
    growth = (later[-1] - later[0]) / len(later)
    span = max(sizes_of_launcher) - min(sizes_of_launcher)
    print(
        json.dumps(
            {
                "failures": struck,
                "replaced": replaced,
                "gave their place away": said.count("it gives its place"),
                "started again": restarted,
                "of these with another mpirun": renewed,
                "exit code": job.returncode,
                "same digest": found == expected,
                "KiB of the oldest rank, at each eighth": [each.oldest for each in at_eighths(sizes)],
                "at most": largest,
                "KiB of another rank": [each.others for each in at_eighths(sizes)],
                "open files": [each.files for each in at_eighths(sizes)],
                "KiB of mpirun": [each.launcher for each in at_eighths(sizes)],
                "KiB of mpirun, at most": max(sizes_of_launcher),
                "KiB of mpirun, a failure": round(growth),
            }
        )
    )
    flat = largest - young <= _KEPT * MOST_MET and span <= launcher + _BURST and renewed == restarted
    slow = renewed * (launcher - _ONCE) <= _LAUNCHER_KEPT * struck if renewed else growth <= _LAUNCHER_KEPT
    flat = storm or (flat and slow)
    right = bool(found) and found == expected and struck >= failures // 2 and flat
    if not right:
        print(said[-4000:], file=sys.stderr)
    return right


def at_eighths(sizes: Sequence[Sizes]) -> list[Sizes]:
    """The first and the last of them, and seven between."""
    return [sizes[at * (len(sizes) - 1) // 8] for at in range(9)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--failures", type=int, default=300)
    parser.add_argument("--period", type=float, default=2.0, help="seconds from one to the next, in the mean")
    parser.add_argument("--storm", action="store_true", help="kill any rank, faster than they recover")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--launcher", type=int, default=mpirun.MOST_KEPT >> 10, help="MB by which mpirun may grow")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        return not soak(
            options.ranks, options.failures, options.period, options.storm, options.launcher << 10, Path(name)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
