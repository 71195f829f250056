"""Kills a rank of one elastic job every few seconds, for as long as it is told, and replacements as they come.

    python -m tests.campaigns.soak                             # 300 failures, one every two seconds: ten minutes
    python -m tests.campaigns.soak --failures 20 --period 1.5

tests/campaigns/soak_job.py is the job. Ranks are killed at random, but for one process, whose memory and open files are
looked at from the first failure to the last. Asked at the end: did the job end well, with the digest of one rank that
nobody disturbed, had every failure its replacement, is that process as large as it was but for what Open MPI keeps of
every process that ever joined. Exit code 1 where it was not. Also told is how large the other ranks were, and mpirun.
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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.elastic import ROOT, digest_of

# KiB a failure of the process that is spared. Of what is allocated while a replacement joins and is never freed, PMIx
# holds 82 (the data of its namespace, three hash tables of 22 above all), the TCP transport 40, communicators
# 12; nothing is Python's or ours (a count of all that malloc gave, by who asked for it). What the heap cannot give back
# between them comes to it.
_GROWTH = 300


class Sizes(NamedTuple):
    """Of a job at one moment: KiB of memory of the process that is spared, its open files; KiB of each of the other
    ranks, in the mean, and of mpirun.
    """

    spared: int
    files: int
    others: int
    launcher: int


def command(ranks: int, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "launch", "-n", str(ranks), *options, "-m", "tests.campaigns.soak_job"]


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


def sizes_of(spared: int, ranks: Sequence[int]) -> Sizes:
    """Of a job, one of whose ranks is spared."""
    others = [size for pid in ranks if pid != spared and (size := of_status(pid, "RssAnon"))]
    files = len(os.listdir(f"/proc/{spared}/fd"))
    launcher = of_status(of_status(spared, "PPid"), "RssAnon")
    return Sizes(of_status(spared, "RssAnon"), files, int(statistics.mean(others or [0])), launcher)


def soak(ranks: int, failures: int, period: float, folder: Path) -> bool:
    """Runs it and prints what came of it; returns whether all is as it should be."""
    each = 0.05
    steps = int(failures * period / each)
    alone = folder / "alone"
    alone.mkdir()
    quiet = subprocess.run(
        command(1, []),
        cwd=ROOT,
        env=environment(alone, steps, 0.0),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    expected = digest_of(quiet.stdout)
    errors = (folder / "stderr").open("w")
    job = subprocess.Popen(
        command(ranks, ["--elastic", f"1:{ranks}"]),
        cwd=ROOT,
        env=environment(folder, steps, each),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    chance = random.Random(1)
    spared, struck = 0, 0
    sizes: list[Sizes] = []
    while job.poll() is None and struck < failures:
        time.sleep(period)
        there = ranks_in(folder)
        if len(there) < ranks or {size for _, size in there.values()} != {ranks}:
            continue  # the last one is not replaced yet
        spared = spared or min(there)
        if spared not in there:
            break
        sizes.append(sizes_of(spared, [*there]))
        os.kill(chance.choice([pid for pid in there if pid != spared]), signal.SIGKILL)
        struck += 1
    out, _ = job.communicate()
    errors.close()
    said = (folder / "stderr").read_text()
    replaced = said.count("replaced from step")
    found = digest_of(out) if job.returncode == 0 else ""
    quarter = max(1, len(sizes) // 4)
    before, after = median_of(sizes[quarter : 2 * quarter] or sizes), median_of(sizes[-quarter:])
    between = max(1, len(sizes) // 2)  # from the middle of one quarter to that of the other
    growth = (after.spared - before.spared) / between
    print(
        json.dumps(
            {
                "failures": struck,
                "replaced": replaced,
                "exit code": job.returncode,
                "same digest": found == expected,
                "KiB of the process that was spared, before and after": [before.spared, after.spared],
                "KiB a failure": round(growth),
                "open files": [before.files, after.files],
                "KiB of another rank": [before.others, after.others],
                "KiB of mpirun": [before.launcher, after.launcher],
            }
        )
    )
    right = bool(found) and found == expected and struck >= failures // 2 and growth <= _GROWTH
    if not right:
        print(said[-4000:], file=sys.stderr)
    return right


def median_of(sizes: Sequence[Sizes]) -> Sizes:
    """Each by itself; zeros where the job was never looked at."""
    columns = zip(*(sizes or [Sizes(0, 0, 0, 0)]), strict=True)
    return Sizes(*(int(statistics.median(column)) for column in columns))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--failures", type=int, default=300)
    parser.add_argument("--period", type=float, default=2.0, help="seconds from one to the next")
    parser.add_argument("--ranks", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        return not soak(options.ranks, options.failures, options.period, Path(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
