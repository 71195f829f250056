"""Strikes an elastic job at the places where its ranks talk or could die, and looks whether the others go on.

    python -m tests.campaigns.elastic --every 25                    # every 25th place, the kinds taking turns
    python -m tests.campaigns.elastic --every 1 --ranks 2           # each place, each kind

tests/campaigns/elastic_job.py is the job. An undisturbed run counts its places; then, for each transport, number of
ranks, and victim (the first and the last rank), every k-th of them is struck. Of each case it is asked: did the job end
well, with the digest of the undisturbed run; is the newest checkpoint there; how long was it from the fault to the next
step. Prints a table; exit code 1 where anything was otherwise.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("SIGKILL", "SIGSTOP", "raise", "os._exit", "sys.exit", "segfault")
TRANSPORTS = ("shared", "mpi", "hierarchical")
_STOPPED = 4.0  # seconds, the time-out of a stopped rank
_LIMIT = 60.0


@dataclass(frozen=True)
class Ending:
    """How a case ended. place: what was struck, empty where the job never came there. seconds: to the next step."""

    place: str
    seconds: float | None
    problem: str
    output: str


def run(
    folder: Path, transport: str, ranks: int, strike: tuple[str, int, int] | None
) -> subprocess.CompletedProcess[str]:
    """The job under `ddprun`; strike: fault, victim, place."""
    settings = {"FAULT_FOLDER": str(folder), "FAULT_TRANSPORT": transport, "FAULT_TIMEOUT": str(_STOPPED)}
    if strike is not None:
        fault, victim, place = strike
        settings |= {"FAULT_KIND": fault, "FAULT_VICTIM": str(victim), "FAULT_POINT": str(place)}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "launch", "-n", str(ranks), "--elastic", "1", "-m", "tests.campaigns.elastic_job"]
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


def strike(fault: str, transport: str, ranks: int, victim: int, place: int, expected: str) -> Ending:
    """Runs one case and judges it."""
    with tempfile.TemporaryDirectory(prefix="elastic-") as name:
        folder = Path(name)
        done = run(folder, transport, ranks, (fault, victim, place))
        struck = folder / "struck"
        went_on = folder / "went on"
        problem = ""
        if done.returncode != 0:
            problem = f"exit code {done.returncode}"
        elif digest_of(done.stdout) != expected:
            problem = "another digest" if digest_of(done.stdout) else "no digest"
        elif not (folder / "checkpoints" / "step-00000030").exists():
            problem = "no checkpoint"
        return Ending(
            struck.read_text() if struck.exists() else "",
            float(went_on.read_text()) if went_on.exists() else None,
            problem,
            f"{done.stdout}\n{done.stderr}",
        )


def undisturbed(transport: str, ranks: int) -> tuple[list[int], str]:
    """How many places each rank has, and the digest. Raises RuntimeError where the job does not end well."""
    with tempfile.TemporaryDirectory(prefix="elastic-none-") as name:
        done = run(Path(name), transport, ranks, None)
        if done.returncode != 0:
            raise RuntimeError(f"the undisturbed job ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        places = [len(Path(name, f"points-{rank}").read_text().splitlines()) for rank in range(ranks)]
        return places, digest_of(done.stdout)


def campaign(
    faults: Sequence[str], transports: Sequence[str], ranks: Sequence[int], every: int, begin: int, keep: Path | None
) -> bool:
    """Strikes at places `begin`, `begin + every`, ... Prints a table; returns whether all is as it should be."""
    endings: dict[str, list[Ending]] = {fault: [] for fault in faults}
    for transport in transports:
        for size in ranks:
            places, expected = undisturbed(transport, size)
            for victim in (0, size - 1):
                for at, place in enumerate(range(begin, places[victim], every)):
                    for fault in faults if every == 1 else [faults[(at + victim + size) % len(faults)]]:
                        ending = strike(fault, transport, size, victim, place, expected)
                        endings[fault].append(ending)
                        if ending.problem:
                            case = f"{fault} of rank {victim} of {size} at place {place}, {transport}"
                            print(f"{case} ({ending.place}): {ending.problem}", flush=True)
                            if keep is not None:
                                keep.mkdir(exist_ok=True)
                                (keep / case.replace(" ", "-")).write_text(ending.output)
    return _print_table(endings)


def _print_table(endings: dict[str, list[Ending]]) -> bool:
    print("| fault | struck | went on, same digest | median s | 95th | worst |\n|---|---|---|---|---|---|")
    right = True
    for fault, cases in endings.items():
        struck = [ending for ending in cases if ending.place]
        good = [ending for ending in struck if not ending.problem]
        right = right and len(good) == len(struck) and all(not ending.problem for ending in cases)
        seconds = sorted(ending.seconds for ending in good if ending.seconds is not None)
        figures = "| | |"
        if seconds:
            late = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
            figures = f"{statistics.median(seconds):.2f} | {late:.2f} | {seconds[-1]:.2f} |"
        print(f"| {fault} | {len(struck)} | {len(good)} | {figures}", flush=True)
    return right


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=25, help="strike at every k-th place (default 25)")
    parser.add_argument("--begin", type=int, default=0, help="the first place (default 0)")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=["shared"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--keep", type=Path, help="a folder for the output of cases that went wrong")
    options = parser.parse_args(arguments)
    right = campaign(options.faults, options.transports, options.ranks, options.every, options.begin, options.keep)
    return not right


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
