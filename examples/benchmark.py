"""Training throughput, memory and start-up beside PyTorch's, measured in turn: one table, with ratios and targets.

    python examples/benchmark.py                                       # four models, AdamW, the start of a process
    python examples/benchmark.py all --torch-python OTHER/bin/python   # eleven models; PyTorch lives elsewhere
    python examples/benchmark.py gpt tiny --rounds 3 --json            # two models, JSON lines instead of the table
    python examples/benchmark.py all --write PERFORMANCE.md            # the table goes into a file, between its marks
    python examples/benchmark.py --compile                             # engine.compile here, torch.compile there
    ddprun -n 2 examples/benchmark.py gpt                              # no peer: times this model on these ranks

Every figure comes from a process of its own, `benchmarks/training.py`: one rank; several ranks of one thread, here
under ddprun and for PyTorch under torchrun with gloo; one process with all threads; and, here, the step captured by
engine.compile. A round runs everything once, the
two sides directly after one another; which goes first changes from round to round. A value of a round is the median
over the steps of rank 0. AdamW is its step alone. The start is that of the first four models that are named, or of all
four, the slowest of which counts.
"""

import argparse
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from figures import (  # noqa: E402
    OPTIMIZER,
    OTHERS,
    START,
    STATED,
    Figure,
    Round,
    beside_compiler,
    captured,
    figures,
    surroundings,
    table,
    write,
)

PROGRAM = ROOT / "benchmarks" / "training.py"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # one of them is set on a rank
FIRST = ["--warmup=0", "--steps=1"]
SHORT = ["--warmup=3", "--steps=3"]  # as many as a captured step is recorded in


@dataclass
class Side:
    """One of the two libraries, the Python that has it, and what each round measured."""

    name: str
    python: str
    bytecode: str = ""  # a folder for it where the environment asks to write none: an installer has written it
    rounds: list[Round] = field(default_factory=list)

    def run(self, words: list[str], threads: int, **variables: str) -> str:
        """The output of this side's Python, with so many threads. Raises RuntimeError with the errors if it fails."""
        environment = {**os.environ, **dict.fromkeys(THREADS, str(threads)), "BENCHMARK_LIBRARY": self.name}
        if self.bytecode:
            environment["PYTHONPYCACHEPREFIX"] = self.bytecode
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if self.name == "engine":  # installed or not
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [self.python, *words], env=environment | variables, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def train(self, name: str, ranks: int, threads: int, options: list[str], **variables: str) -> dict[str, Any]:
        """One run of the program: its line, with `start_s`, the seconds until its first step was done."""
        launcher = []
        if ranks > 1 and self.name == "torch":
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        elif ranks > 1:
            launcher = ["-m", "launch", "-n", str(ranks)]
        began = time.monotonic()
        line = json.loads(self.run([*launcher, str(PROGRAM), name, *options], threads, **variables).splitlines()[-1])
        return {**line, "start_s": round(line.pop("first_step_at") - began, 3)}

    def start(self, models: list[str]) -> dict[str, Any]:
        """Seconds to import the library and to the first step, with nothing compiled yet and later."""
        self.train(models[0], 1, 1, FIRST)  # writes byte code
        code = f"import time; t = time.perf_counter(); import {self.name}; print(time.perf_counter() - t)"
        line: dict[str, Any] = {
            "library": self.name,
            "workload": START,
            "import_s": round(float(self.run(["-c", code], 1)), 3),
        }
        for name in models:
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold_s", "warm_s") if self.name == "engine" else ("warm_s",):
                    found = self.train(name, 1, 1, FIRST, NUMBA_CACHE_DIR=cache)
                    line[state] = max(line.get(state, 0.0), found["start_s"])
        return line


def run_round(sides: list[Side], names: list[str], ranks: int, cores: int, options: list[str]) -> Iterator[Any]:
    """Measures everything once on all sides, in turn; yields the lines as they come."""
    started = [name for name in names if name in STATED] or list(STATED)
    for name in names:
        if name == START:
            for side in sides:
                side.rounds[-1][name, 1, 1] = line = side.start(started)
                yield line
            continue
        for count, threads in dict.fromkeys([(1, 1)] if name in OPTIMIZER else [(1, 1), (ranks, 1), (1, cores)]):
            for side in sides:
                side.rounds[-1][name, count, threads] = line = side.train(name, count, threads, options)
                yield line
            if name not in OPTIMIZER and threads == 1:  # what engine.compile makes of it, beside the same peer
                side = next(side for side in sides if side.name == "engine")
                line = side.train(name, count, threads, [*options, "--capture"])
                side.rounds[-1][captured(name), count, threads] = line
                yield line


def run_compiled(sides: list[Side], names: list[str], ranks: int, options: list[str]) -> Iterator[Any]:
    """The same for what each side's compiler makes of it."""
    for name in names:
        for count in (1, ranks):
            for side in sides:
                line = side.train(name, count, 1, [*options, "--capture"])
                side.rounds[-1][captured(name), count, 1] = line
                yield line


def parse() -> argparse.Namespace:
    """The command line; `names` are those of the workloads, in the order they are measured in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*STATED, *OTHERS, "adamw", START)
    stated = (*STATED, "adamw", START)
    what = f"any of {', '.join(known)}; or all; default: {', '.join(stated)}"
    parser.add_argument("names", nargs="*", metavar="WHAT", help=what)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--ranks", type=int, default=2, help="beside one rank; default 2")
    parser.add_argument(
        "--torch-python", metavar="PATH", help="a Python with PyTorch (default: this one, if it has it)"
    )
    parser.add_argument("--compile", action="store_true", help="engine.compile and torch.compile, side by side")
    parser.add_argument("--short", action="store_true", help="one round of three steps: only shows that it works")
    parser.add_argument("--json", action="store_true", help="JSON lines of every process and every figure, no table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also put the table into FILE, between its marks")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in (*known, "all")]:
        parser.error(f"unknown workload {unknown[0]!r}: choose from {', '.join(known)}, all")
    if given.rounds < 1 or given.ranks < 2:
        parser.error(f"expected 1 round and 2 ranks or more, got {given.rounds} and {given.ranks}")
    chosen = known if "all" in given.names else given.names or stated
    if given.compile:
        given.names = [name for name in chosen if name in (*STATED, *OTHERS)]
        if not given.names:
            parser.error("--compile is about models: name one")
        return given
    given.names = [name for each in chosen for name in (OPTIMIZER if each == "adamw" else (each,))]
    return given


def main() -> None:
    if any(name in os.environ for name in RANK):
        runpy.run_path(str(PROGRAM), run_name="__main__")
        return
    given = parse()
    compared = bool(given.torch_python or importlib.util.find_spec("torch"))
    if not compared:
        print("PyTorch is not installed here and no --torch-python is given: one side only", file=sys.stderr)
    peer = given.torch_python or (sys.executable if compared else None)
    about = surroundings(["python", "examples/benchmark.py", *sys.argv[1:]], peer)
    rounds = 1 if given.short else given.rounds
    about += f" Median (least … greatest) over {rounds} rounds; ratios within a round."
    with tempfile.TemporaryDirectory() as bytecode:
        lines = measured(given, rounds, compared, bytecode)
    text = f"{about}\n\n{table(lines)}"
    print("\n".join(json.dumps(line.as_json()) for line in lines) if given.json else text)
    if given.write:
        write(given.write, "figures beside the compiler" if given.compile else "figures", text)


def measured(given: argparse.Namespace, rounds: int, compared: bool, bytecode: str) -> list[Figure]:
    """Measures all rounds, prints each line as it comes, and returns the figures."""
    own, peer = Side("engine", sys.executable, bytecode), Side("torch", given.torch_python or sys.executable)
    cores, options = len(os.sched_getaffinity(0)), SHORT if given.short else []
    for number in range(rounds):
        sides = ([own, peer] if number % 2 == 0 else [peer, own]) if compared else [own]
        for side in sides:
            side.rounds.append({})
        if given.compile:
            lines = run_compiled(sides, given.names, given.ranks, options)
        else:
            lines = run_round(sides, given.names, given.ranks, cores, options)
        for line in lines:
            progress = sys.stdout if given.json else sys.stderr
            print(json.dumps({"round": number, **line}), file=progress, flush=True)
    if given.compile:
        return list(beside_compiler(own.rounds, peer.rounds, given.names, given.ranks))
    return list(figures(own.rounds, peer.rounds, given.names, given.ranks, cores))


if __name__ == "__main__":
    main()
