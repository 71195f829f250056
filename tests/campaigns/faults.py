"""Strikes a training job at the places where its ranks talk or write, and looks how it ends.

    python -m tests.campaigns.faults --every 1 --at-once 3   # each place once: of shared memory 1,176, of MPI 1,572
    python -m tests.campaigns.faults --every 25 --faults SIGKILL raise --ranks 2 --transports shared

tests/campaigns/fault_job.py is the job. An undisturbed run counts its places; then, for each transport, number of
ranks, and victim (the first and the last rank), every k-th of them is struck: by one fault after the other in turn, and
by all of them at each place with --all-faults. Of each case it is asked: did the job end in time, with a right exit
code, naming the victim before any other rank, naming the cause; is nothing left of it in that time (no process, no
file); and is the newest checkpoint whole, with the content of the undisturbed run. Prints a table; exit code 1 where
anything was otherwise.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import engine
from tests.campaigns.digest import digest
from tests.launch.jobs import code_of_lost_rank

ROOT = Path(__file__).resolve().parents[2]
TRANSPORTS = ("shared", "mpi", "hierarchical")

_MARK = "FAULT_CASE"  # in the environment of every process of a case
_END_LIMIT = 10.0  # seconds from the fault, and for a stopped rank from the timeout, to the end of the job


@dataclass(frozen=True)
class Fault:
    """What is to come of it. code: the right exit code, None for any but 0. cause: words, one of which is to be said.
    silent: the rank ends without a word, so that the code is mpirun's.
    """

    code: int | None
    cause: str
    silent: bool = False

    def has(self, code: int) -> bool:
        """Whether a job is to end so."""
        if self.code is None:
            return code != 0
        return code == (code_of_lost_rank(self.code) if self.silent else self.code)


FAULTS = {
    "SIGKILL": Fault(137, r"SIGKILL|signal 9|[Kk]illed", silent=True),
    "SIGSTOP": Fault(None, r"stopped|SIGSTOP"),
    "raise": Fault(1, r"CampaignError: struck"),
    "MemoryError": Fault(1, r"MemoryError: struck"),
    "os._exit": Fault(1, r"ended|exited|left|gone|os\._exit", silent=True),
    "sys.exit": Fault(3, r"exit|ended"),
    "segfault": Fault(139, r"SIGSEGV|[Ss]egmentation|signal 11", silent=True),
}


@dataclass(frozen=True)
class Case:
    """One strike: at place number `point` of rank `victim`."""

    fault: str
    transport: str
    ranks: int
    victim: int
    point: int
    patience: float = 10.0  # seconds, the timeout of the group where a rank is stopped

    def __str__(self) -> str:
        return f"{self.fault} of rank {self.victim} of {self.ranks} at place {self.point}, {self.transport}"


@dataclass
class Ending:
    """How a case ended. place: the name of the place that was struck, None where the job never came there."""

    place: str | None
    seconds: float
    code: int | None
    problems: list[str] = field(default_factory=list)
    output: str = ""


def run_job(folder: Path, case: Case | None, transport: str, ranks: int, limit: float) -> tuple[int | None, float, str]:
    """Runs the job under `ddprun`. Returns its exit code (None: it had to be ended), its seconds, and its output."""
    settings = {
        "FAULT_FOLDER": str(folder),
        "FAULT_TRANSPORT": transport,
        "FAULT_TIMEOUT": str(case.patience if case and case.fault == "SIGSTOP" else 60.0),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(ROOT),
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMP_NUM_THREADS": "1",
        _MARK: folder.name,
    }
    if case is not None:
        settings |= {"FAULT_VICTIM": str(case.victim), "FAULT_POINT": str(case.point), "FAULT_KIND": case.fault}
    (folder / "tmp").mkdir()
    command = [sys.executable, "-m", "launch", "-n", str(ranks), "-m", "tests.campaigns.fault_job"]
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
        )
        struck_at, began = None, time.monotonic()
        while process.poll() is None:
            time.sleep(0.02)
            if struck_at is None and (folder / "struck").exists():
                struck_at = time.monotonic()
            if time.monotonic() > (struck_at or began + 60.0) + limit:
                still = "".join(f"\nstill there: {_described(pid)}" for pid in _processes(folder.name))
                process.kill()
                process.wait()
                return None, limit, (folder / "stderr").read_text(errors="replace") + still
    ended = time.monotonic()
    return process.returncode, ended - (struck_at or began), (folder / "stderr").read_text(errors="replace")


def strike(case: Case, reference: dict[int, str]) -> Ending:
    """Runs one case and judges it. reference: the digest of the state after each step that is saved."""
    with tempfile.TemporaryDirectory(prefix=f"faults-{uuid.uuid4().hex}-") as name:
        folder = Path(name)
        limit = _END_LIMIT + (case.patience if case.fault == "SIGSTOP" else 0.0)
        code, seconds, text = run_job(folder, case, case.transport, case.ranks, limit)
        place = (folder / "struck").read_text().strip() if (folder / "struck").exists() else None
        ending = Ending(place, seconds, code, output=text)
        if place is None:  # a place that this run never came to; the job must have ended well
            if code != 0:
                ending.problems.append("ended by something else")
            return ending
        job = (folder / "job").read_text()
        fault = FAULTS[case.fault]
        if code is None:
            ending.problems.append("time")
        if code is None or not fault.has(code):
            ending.problems.append("code")
        if _first_accused(text) != case.victim:
            ending.problems.append("culprit")
        if not re.search(fault.cause, text):
            ending.problems.append("cause")
        given_up = time.monotonic() + limit - seconds
        while (left := _left(folder, job)) and time.monotonic() < given_up:
            time.sleep(0.05)  # what was killed takes a moment to be gone
        if left:
            ending.problems.append("leftovers")
            ending.output += "".join(f"\nleft: {each}" for each in sorted(left))
        for pid in _processes(folder.name):
            os.kill(pid, signal.SIGKILL)
        if not _is_intact(folder, reference):
            ending.problems.append("checkpoint")
        return ending


def _first_accused(text: str) -> int | None:
    """The first rank that is named, but as one that waits: "rank 0 has been waiting in ... for 5 s, for rank 1".

    A report of a wait may come before the fault, or before its victim has been silent for long: it accuses nobody.
    """
    rows = r"(ranks? [\d, ]+ (waits?|is|are|does|do|has|have) .*\n|  .*\n)*"
    text = re.sub(rf"^ddp watchdog .*, for bytes to arrive.*\n{rows}", "", text, flags=re.MULTILINE)
    first = re.search(r"\brank \d+ has been waiting .*, for rank (\d+)|\brank (\d+)", text)
    return None if first is None else int(first[1] or first[2])


def _is_intact(folder: Path, reference: dict[int, str]) -> bool:
    """Whether the newest checkpoint loads, is of the last step that was saved in whole, and has its content; and
    whether the next save leaves nothing but it.
    """
    begun = [json.loads(line)[0] for line in _lines(folder / "digests")]
    path = folder / "checkpoint.pt"
    if path.exists():
        state = engine.load(path)
        step = state.pop("step")
        if step not in begun[-2:] or digest(state) != reference[step]:
            return False
    elif len(begun) > 1:
        return False
    engine.save({}, path)
    return not list(folder.glob(".checkpoint*"))


def undisturbed(transport: str, ranks: int) -> tuple[list[int], dict[int, str]]:
    """How many places each rank has, and the digests after the steps that are saved."""
    with tempfile.TemporaryDirectory(prefix="faults-none-") as name:
        folder = Path(name)
        code, _, text = run_job(folder, None, transport, ranks, 120.0)
        if code != 0:
            raise RuntimeError(f"the undisturbed job ended with {code}:\n{text}")
        places = [len(_lines(folder / f"points-{rank}")) for rank in range(ranks)]
        return places, dict(map(json.loads, _lines(folder / "digests")))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _files(folder: Path) -> set[str]:
    """The files below a folder; folders alone are none. Others may be removing theirs meanwhile."""
    return {os.path.join(where, name) for where, _, names in os.walk(folder) for name in names}


def _left(folder: Path, job: str) -> set[str]:
    """What there still is of a job: processes, files in its own folder and in shared memory."""
    left = {_described(pid) for pid in _processes(folder.name)} | _files(folder / "tmp")
    return left | {name for name in _files(Path("/dev/shm")) if job in name}


def _described(pid: int) -> str:
    """A process with its state, where it waits in the kernel, and its command."""
    try:
        entry = Path("/proc") / str(pid)
        state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"process {pid}, state {state}, in {(entry / 'wchan').read_text() or 'user code'}: {command[:200]}"
    except OSError as error:
        return f"process {pid}: {error}"


def _processes(case: str) -> Iterator[int]:
    """The processes that inherited the mark of a case."""
    mark = f"{_MARK}={case}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue  # gone meanwhile, or of another user


def places_to_strike(places: Sequence[int], every: int, begin: int) -> Iterator[tuple[int, int, int]]:
    """Ranks, the first and the last, with every k-th of their places from `begin` on, and a number for each."""
    for victim in (0, len(places) - 1):
        for at, point in enumerate(range(begin, places[victim], every)):
            yield at + victim + len(places), victim, point


def campaign(options: argparse.Namespace) -> bool:
    """Strikes at places `begin`, `begin + every`, ... Prints a table; returns whether all is as it should be."""
    jobs = [(transport, size) for transport in options.transports for size in options.ranks]
    endings: dict[str, list[Ending]] = {name: [] for name in options.faults}

    def run(case: Case, reference: dict[int, str]) -> None:
        ending = strike(case, reference)
        endings[case.fault].append(ending)
        if ending.problems:
            print(f"{case} ({ending.place}): {', '.join(ending.problems)}; exit code {ending.code}", flush=True)
            if options.keep is not None:
                options.keep.mkdir(exist_ok=True)
                (options.keep / re.sub(r"\W+", "-", str(case))).write_text(ending.output)

    with ThreadPoolExecutor(options.at_once) as pool:
        known = pool.map(lambda job: undisturbed(*job), jobs)
        under_way = []
        for (transport, size), (places, reference) in zip(jobs, known, strict=True):
            for number, victim, point in places_to_strike(places, options.every, options.begin):
                turn = [options.faults[number % len(options.faults)]]
                for fault in options.faults if options.all_faults else turn:
                    case = Case(fault, transport, size, victim, point, options.patience)
                    under_way.append(pool.submit(run, case, reference))
        for each in under_way:
            each.result()
    return _print_table(endings)


def _print_table(endings: dict[str, list[Ending]]) -> bool:
    asked = ("time", "code", "culprit", "cause", "leftovers", "checkpoint")
    titles = ("in time", "exit code", "culprit first", "cause", "nothing left", "checkpoint")
    print("| fault | struck |", *(f"{title} |" for title in titles), "median s | slowest s |")
    print("|---" * (len(titles) + 4) + "|")
    right = True
    for fault, cases in endings.items():
        struck = [ending for ending in cases if ending.place is not None]
        right = right and not any(ending.problems for ending in cases)
        if not struck:
            continue
        held = [sum(each not in ending.problems for ending in struck) for each in asked]
        seconds = [ending.seconds for ending in struck]
        print(f"| {fault} | {len(struck)} |", *(f"{count} |" for count in held), end=" ")
        print(f"{statistics.median(seconds):.1f} | {max(seconds):.1f} |", flush=True)
    return right


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=10, help="strike at every k-th place (default 10)")
    parser.add_argument("--begin", type=int, default=0, help="the first place (default 0)")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--all-faults", action="store_true", help="all of them at each place, not one in turn")
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--keep", type=Path, help="a folder for the output of cases that went wrong")
    parser.add_argument("--at-once", type=int, default=1, help="so many jobs beside each other (default 1)")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds that ranks wait for a stopped one (default 10)"
    )
    return not campaign(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
