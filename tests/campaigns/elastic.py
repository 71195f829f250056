"""Strikes an elastic job at the places where its ranks talk or could die, and looks whether the others go on.

    python -m tests.campaigns.elastic --every 25                    # every 25th place, the kinds taking turns
    python -m tests.campaigns.elastic --every 1 --ranks 2           # each place, each kind
    python -m tests.campaigns.elastic --every 1 --unlike 6 --jobs 4 # without places that are like earlier ones
    python -m tests.campaigns.elastic --victims together --ranks 3  # the first and the last rank, both at their place
    python -m tests.campaigns.elastic --victims recovery --ranks 3  # rank 1 as well, while the others recover
    python -m tests.campaigns.elastic --victims replaced     # who is lost is replaced: seconds until that takes part
    python -m tests.campaigns.elastic --victims replacement  # and that one is struck, too

tests/campaigns/elastic_job.py is the job. An undisturbed run counts its places; then, for each transport, number of
ranks, and victim (the first and the last rank), every k-th of them is struck. Of each case it is asked: did the job end
well, with the digest of the undisturbed run; is its last checkpoint whole, with the same in it; how long was it from
the fault to the next step. Prints tables; exit code 1 where anything was otherwise, also of a case that never came to
its fault.

Thirty steps are much alike. With `--unlike N` those places are left out to which the rank comes by the same N places as
to an earlier one.
"""

import argparse
import concurrent.futures
import functools
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ddp.checkpoint import tools

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("SIGKILL", "SIGSTOP", "raise", "os._exit", "sys.exit", "segfault")
# What comes to two ranks without being the same error at the same step, which is a bug and no loss.
WITHOUT_ERROR = ("SIGKILL", "SIGSTOP", "os._exit", "segfault")
TRANSPORTS = ("shared", "mpi", "hierarchical")
_LAST = Path("checkpoints", "step-00000030")
_STOPPED = 4.0  # seconds, the time-out of a stopped rank
_LIMIT = 60.0
_REPLACEMENT = 120  # places of a replacement: its start, the meeting in which it joins, its first steps
_RECOVERY = 16  # places of a recovery: as far as the first call of the step that is run again


class Strike(NamedTuple):
    """What is done to whom, at which of its places. recovery: RANK:PLACE of one more victim, in the recovery.
    replaced: whether another one takes a victim's place. replacement: place at which the same is done to that one.
    """

    fault: str
    victims: tuple[int, ...]
    place: int
    recovery: str = ""
    replacement: str = ""
    replaced: bool = False

    def __str__(self) -> str:
        also = f" and {self.recovery} of the recovery" if self.recovery else ""
        also += f" and place {self.replacement} of the replacement" if self.replacement else ""
        return f"{self.fault} of {','.join(map(str, self.victims))} at place {self.place}{also}"


class Reference(NamedTuple):
    """What comes of a job that nothing is done to. places: their names, of each rank. checkpoint: its last one."""

    places: list[list[str]]
    digest: str
    checkpoint: Path


@dataclass(frozen=True)
class Ending:
    """How a case ended. places: what was struck, none where the job never came there. seconds: to the next step."""

    places: list[str]
    seconds: float | None
    problem: str
    output: str


def run(folder: Path, transport: str, ranks: int, strike: Strike | None) -> subprocess.CompletedProcess[str]:
    """The job under `ddprun`."""
    settings = {"FAULT_FOLDER": str(folder), "FAULT_TRANSPORT": transport, "FAULT_TIMEOUT": str(_STOPPED)}
    if strike is not None:
        victims = ",".join(map(str, strike.victims))
        settings |= {"FAULT_KIND": strike.fault, "FAULT_VICTIM": victims, "FAULT_POINT": str(strike.place)}
        settings |= {"FAULT_RECOVERY": strike.recovery, "FAULT_REPLACEMENT": strike.replacement}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # All ranks are waited for where they are replaced: so each strike comes to its replacement.
    elastic = f"{ranks}:{ranks}" if strike is not None and strike.replaced else "1"
    command = [sys.executable, "-m", "launch", "-n", str(ranks), "--elastic", elastic]
    command += ["-m", "tests.campaigns.elastic_job"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **settings, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # at once
        out, err = process.communicate()
        return subprocess.CompletedProcess(command, -1, out, err)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def digest_of(output: str) -> str:
    """What the job's last line says; empty where it says nothing."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return str(json.loads(lines[-1])) if lines else ""


def judge(strike: Strike, transport: str, ranks: int, expected: Reference) -> Ending:
    """Runs one case and judges it."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as name:
        folder = Path(name)
        done = run(folder, transport, ranks, strike)
        struck = folder / "struck"
        went_on = folder / "went on"
        problem = ""
        if done.returncode != 0:
            problem = f"exit code {done.returncode}"
        elif digest_of(done.stdout) != expected.digest:
            problem = "another digest" if digest_of(done.stdout) else "no digest"
        elif not (folder / _LAST).exists():
            problem = "no checkpoint"
        else:
            problem = "; ".join(tools.verify(folder / _LAST) or tools.difference(folder / _LAST, expected.checkpoint))
        return Ending(
            struck.read_text().splitlines() if struck.exists() else [],
            float(went_on.read_text()) if went_on.exists() else None,
            problem,
            f"{done.stdout}\n{done.stderr}",
        )


def judge_before(deadline: float, transport: str, ranks: int, expected: Reference, strike: Strike) -> Ending | None:
    """The same, but None after this time of `time.monotonic`."""
    return None if time.monotonic() > deadline else judge(strike, transport, ranks, expected)


def undisturbed(transport: str, ranks: int, folder: Path) -> Reference:
    """Runs the job in a folder, which is to be kept. Raises RuntimeError where it does not end well."""
    done = run(folder, transport, ranks, None)
    if done.returncode != 0:
        raise RuntimeError(f"the undisturbed job ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    places = [(folder / f"points-{rank}").read_text().splitlines() for rank in range(ranks)]
    return Reference(places, digest_of(done.stdout), folder / _LAST)


def unlike(places: Sequence[str], before: int) -> list[int]:
    """The places to which no earlier one is like: that has another name, or others among so many before it."""
    first: dict[tuple[str, ...], int] = {}
    for at in range(len(places)):
        first.setdefault(tuple(places[max(0, at - before) : at + 1]), at)
    return [*first.values()]


def strikes(
    faults: Sequence[str], victims: str, places: Sequence[Sequence[str]], every: int, begin: int, before: int | None
) -> Iterator[Strike]:
    """What to do to a job whose ranks have these places. before: see `unlike`; None: places may be alike."""
    ranks = len(places)
    who = [(0, ranks - 1)] if victims == "together" else [(0,), (ranks - 1,)]
    replaced = victims in ("replacement", "replaced")
    for each in who:
        shortest = min((places[victim] for victim in each), key=len)
        # Of a job that replaces ranks only those after which there is a step in which one can join.
        shortest = shortest[: len(shortest) * 9 // 10] if replaced else shortest
        struck = [*range(len(shortest))] if before is None else unlike(shortest, before)
        for at, place in enumerate(struck[begin::every]):
            for fault in faults if every == 1 else [faults[(at + each[0] + ranks) % len(faults)]]:
                later = (5 * at + each[0]) % _RECOVERY  # a sample of few places has some from all over the recovery
                after = str((7 * at + each[0]) % _REPLACEMENT) if victims == "replacement" else ""
                yield Strike(fault, each, place, f"1:{later}" if victims == "recovery" else "", after, replaced)


def campaign(
    faults: Sequence[str],
    transports: Sequence[str],
    ranks: Sequence[int],
    victims: str,
    every: int,
    begin: int,
    before: int | None,
    jobs: int,
    keep: Path | None,
    seconds: float,
) -> bool:
    """Strikes at places `begin`, `begin + every`, ..., in so many jobs at once, and begins no case after `seconds`.
    Prints a table for each transport and number of ranks; returns whether all is as it should be.
    """
    deadline = time.monotonic() + seconds
    right = True
    for transport, size in itertools.product(transports, ranks):
        endings: dict[str, list[Ending]] = {fault: [] for fault in faults}
        left_out = 0
        with (
            tempfile.TemporaryDirectory(prefix="elastic-none-") as name,
            concurrent.futures.ThreadPoolExecutor(jobs) as executor,
        ):
            expected = undisturbed(transport, size, Path(name))
            chosen = [*strikes(faults, victims, expected.places, every, begin, before)]
            of_each = executor.map(functools.partial(judge_before, deadline, transport, size, expected), chosen)
            for strike, ending in zip(chosen, of_each, strict=True):
                if ending is None:
                    left_out += 1
                    continue
                endings[strike.fault].append(ending)
                if ending.problem:
                    print(f"{strike}, {size} ranks, {transport} ({ending.places}): {ending.problem}", flush=True)
                    if keep is not None:
                        keep.mkdir(exist_ok=True)
                        (keep / f"{strike}, {size} ranks, {transport}".replace(" ", "-")).write_text(ending.output)
        without = f"; not begun, for want of time: {left_out} cases" if left_out else ""
        print(f"{size} ranks, {transport}{without}")
        right = _print_table(endings) and right
    return right


def _print_table(endings: dict[str, list[Ending]]) -> bool:
    print("| fault | cases | ranks struck | went on, same digest | median s | 95th | worst |")
    print("|---|---|---|---|---|---|---|")
    for fault, cases in endings.items():
        good = [ending for ending in cases if not ending.problem]
        seconds = sorted(ending.seconds for ending in good if ending.seconds is not None)
        figures = "| | |"
        if seconds:
            late = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
            figures = f"{statistics.median(seconds):.2f} | {late:.2f} | {seconds[-1]:.2f} |"
        struck = sum(len(ending.places) for ending in cases)
        print(f"| {fault} | {len(cases)} | {struck} | {len(good)} | {figures}", flush=True)
    return all(not ending.problem for cases in endings.values() for ending in cases)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=25, help="strike at every k-th place (default 25)")
    parser.add_argument("--begin", type=int, default=0, help="the first place (default 0)")
    parser.add_argument("--unlike", type=int, metavar="N", help="no place that an earlier one is like, by N before it")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (default 1)")
    parser.add_argument("--victims", choices=("one", "together", "recovery", "replaced", "replacement"), default="one")
    parser.add_argument("--faults", nargs="+", choices=FAULTS)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=["shared"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--keep", type=Path, help="a folder for the output of cases that went wrong")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after so many")
    options = parser.parse_args(arguments)
    if options.victims in ("together", "recovery") and min(options.ranks) < 3:
        parser.error(f"--victims {options.victims}: somebody has to be left; add --ranks 3")
    faults = options.faults or (FAULTS if options.victims in ("one", "replaced") else WITHOUT_ERROR)
    right = campaign(
        faults,
        options.transports,
        options.ranks,
        options.victims,
        options.every,
        options.begin,
        options.unlike,
        options.jobs,
        options.keep,
        options.seconds,
    )
    return not right


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
