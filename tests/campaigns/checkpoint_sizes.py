"""Continues jobs on other numbers of ranks: every P to every Q, with and without ZeRO.

    python -m tests.campaigns.checkpoint_sizes --ranks 1 2 3 4 5 6 7 8

A job of 8 shards (an embedding tied to the head, dropout, AdamW with two groups, a schedule, a shuffled loader) does
two steps on P ranks and is saved, then two more on Q, and is to have the bits of one rank that did all four:
parameters, schedule, losses. Ranks are threads. Prints a table of P by Q; exit code 1 where bits differ.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ddp
from ddp import checkpoint
from ddp.testing import run_ranks
from engine.optim import AdamW
from engine.optim.lr_scheduler import CosineAnnealingLR
from tests.ddp.job.runs import Run

SHARDS, STEPS = 8, 2
KINDS = ("plain", "ZeRO")


class SavedRun(Run):
    """A run with a checkpoint."""

    def __init__(self, zero: bool) -> None:
        super().__init__("gpt", shards=SHARDS)
        if zero:
            self.optimizer = ddp.ZeroRedundancyOptimizer(self.net.parameters(), AdamW, lr=0.01)
            self.scheduler = CosineAnnealingLR(self.optimizer, T_max=20)
        self.state: dict[str, Any] = {
            "model": self.net.module, "optimizer": self.optimizer, "scheduler": self.scheduler, "job": self.job,
            "loader": self.loader, "losses": self.losses,
        }  # fmt: skip

    def digest(self) -> str:
        """Of all that every rank has."""
        return ddp.digest(self.net, self.scheduler) + repr(self.losses)


def begin(zero: bool, path: Path) -> None:
    """The first steps, and a checkpoint."""
    run = SavedRun(zero)
    run.train(STEPS)
    checkpoint.save(run.state, path)


def go_on(zero: bool, path: Path) -> str:
    """The other steps, of a job that was made anew."""
    run = SavedRun(zero)
    checkpoint.load(run.state, path)
    run.losses = run.state["losses"]
    return run.train(2 * STEPS)


def table(sizes: Sequence[int], folder: Path, tell: Callable[[str], None]) -> bool:
    """Whether all bits are those of the uninterrupted run on one rank."""
    right = True
    for kind in KINDS:
        zero = kind == "ZeRO"
        whole = run_ranks(1, lambda zero=zero: SavedRun(zero).train(2 * STEPS))[0]
        tell(f"| {kind}, from | " + " | ".join(f"to {ranks}" for ranks in sizes) + " |")
        tell("|---" * (1 + len(sizes)) + "|")
        for before in sizes:
            path = folder / f"{kind}-{before}"
            run_ranks(before, lambda zero=zero, path=path: begin(zero, path))
            same = [set(run_ranks(after, lambda zero=zero, path=path: go_on(zero, path))) == {whole} for after in sizes]
            right = right and all(same)
            tell(f"| {before} | " + " | ".join("same bits" if each else "OTHER" for each in same) + " |")
    return right


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[*range(1, SHARDS + 1)])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
        return not table(options.ranks, Path(folder), lambda line: print(line, flush=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
