"""Strikes checkpoints at every operation of their writers: kills the job, fills the disk, cuts the files.

    python -m tests.campaigns.checkpoints --every 1

A job of two ranks (threads, of a forked process where it is killed) writes three generations and keeps two. At the
k-th operation on files (each so many bytes, each open, sync, rename, unlink, folder) it is struck. Then another number
of ranks looks at what is there: the newest complete generation loads, it is none older than the last that the job was
told of, its values are those of its step; after one more generation no other file is left. Prints a table; exit code 1
where that is not so. Where TMPDIR is a folder in memory, no sync waits for a disk, and it takes a third of the time.
"""

import argparse
import contextlib
import errno
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import engine
from ddp import checkpoint
from ddp.checkpoint import places, shard
from ddp.testing import run_ranks

STEPS = 3
_BYTES = 512  # written at a time: an operation each
_RANKS = 2

ERRORS = {"disk full": errno.ENOSPC, "quota": errno.EDQUOT, "read-only": errno.EROFS, "bad disk": errno.EIO}
FAULTS = ("SIGKILL", *ERRORS, "cut")


def state(step: int) -> dict[str, Any]:
    """What is saved at a step."""
    return {"weight": engine.full((700,), float(step)), "small": engine.full((3,), float(step)), "step": step}


class Struck:
    """Counts operations, and strikes at one. say: tells what the job has come to."""

    def __init__(self, fault: str, at: int) -> None:
        self.fault, self.at, self.count, self.where = fault, at, 0, ""

    def __call__(self, where: str) -> None:
        self.count += 1
        if self.count - 1 != self.at:
            return
        self.where = where
        if self.fault == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(ERRORS[self.fault], os.strerror(ERRORS[self.fault]))


@contextlib.contextmanager
def instrumented(struck: Struck) -> Iterator[None]:
    """Every operation on files of this process is counted."""

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            struck(name)
            return function(*arguments, **keywords)

        return call

    def write_all(file: Any, content: memoryview) -> None:
        for begin in range(0, max(1, len(content)), _BYTES):
            struck("write")
            file.write(content[begin : begin + _BYTES])

    class Slow:
        """A manifest's file that is written in many operations."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, text: bytes) -> None:
            for begin in range(0, len(text), _BYTES):
                struck("write of the manifest")
                self.file.write(text[begin : begin + _BYTES])
                self.file.flush()

    whole_commit = places.Draft.commit

    def commit(draft: places.Draft, text: bytes) -> None:
        draft._file = Slow(draft._file)
        whole_commit(draft, text)

    with contextlib.ExitStack() as patches:
        for name in ("open", "write", "fsync", "replace", "unlink", "rmdir", "mkdir"):
            patches.enter_context(mock.patch.object(os, name, counted(getattr(os, name), name)))
        patches.enter_context(mock.patch.object(shard, "_write_all", write_all))
        patches.enter_context(mock.patch.object(places.Draft, "commit", commit))
        yield


def job(folder: Path, struck: Struck, told: Callable[[str], None]) -> None:
    """What is struck: generations one after another, of a rank that goes on after an error."""

    def body() -> None:
        with checkpoint.Manager(folder, held := state(0), every=1, keep=2) as manager:
            manager.restore()
            for step in range(1, STEPS + 1):
                held.update(state(step))
                try:
                    manager.save(step)
                    manager.wait()
                except OSError as error:
                    if manager._group.rank == 0:
                        told(f"error {error}")
                else:
                    if manager._group.rank == 0:
                        told(f"complete {step}")

    with instrumented(struck):
        run_ranks(_RANKS, body)
    told(f"operations {struck.count}")


def outcome(folder: Path, fault: str, at: int) -> tuple[list[str], int]:
    """What a job told that was struck, and its status. After an error the process lives on, and so do its locks."""
    if fault == "SIGKILL":
        return forked(folder, fault, at)
    lines: list[str] = []
    try:
        job(folder, Struck(fault, at), lines.append)
    except Exception:  # noqa: BLE001 - told as what is wrong
        lines.append(f"raised {traceback.format_exc()}")
    return lines, 0


def forked(folder: Path, fault: str, at: int) -> tuple[list[str], int]:
    """What a job told that was struck, and its status."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            job(folder, Struck(fault, at), lambda words: os.write(writing, f"{words}\n".encode()) and None)
            code = 0
        except BaseException:  # noqa: BLE001 - told, and then the process ends
            os.write(writing, f"raised {traceback.format_exc()}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading) as file:
        lines = file.read().splitlines()
    return lines, os.waitpid(pid, 0)[1]


def look(folder: Path, at_least: int, ranks: int) -> list[str]:
    """What is wrong with what a job has left, as another one finds it."""
    problems: list[str] = []

    def body() -> None:
        held = state(0)
        with checkpoint.Manager(folder, held, every=1, keep=2) as manager:
            step = manager.restore()
            if step < at_least:
                problems.append(f"step {step} was restored, {at_least} was complete")
            expected = state(step)
            if not all(engine.equal(held[key], expected[key]) for key in ("weight", "small")) or held["step"] != step:
                problems.append(f"other values at step {step}")
            manager.save(step + 1)
            manager.wait()
            if manager.all_steps()[0] != step + 1:
                problems.append("no generation could be written afterwards")

    try:
        run_ranks(ranks, body)
    except (OSError, RuntimeError, ValueError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    for path in folder.rglob("*"):
        generation = path if path.is_dir() else path.parent
        if not places.is_complete(generation) or path.name.endswith("partial"):
            problems.append(f"left: {path.relative_to(folder)}")
    if len(places.generations(folder)) > 2:
        problems.append("more generations than are kept")
    return list(dict.fromkeys(problems))


def cases(fault: str, every: int, begin: int) -> Iterator[tuple[str, list[str]]]:
    """Strikes at operation after operation, until the job has no more; each with what was wrong."""
    at = begin
    while True:
        with tempfile.TemporaryDirectory(prefix="checkpoints-") as name:
            folder = Path(name, "runs")
            folder.mkdir()
            lines, status = outcome(folder, fault, at)
            if any(line.startswith("operations") and int(line.split()[1]) <= at for line in lines):
                return
            complete = [int(line.split()[1]) for line in lines if line.startswith("complete")]
            problems = [line for line in lines if line.startswith("raised")]
            if fault == "SIGKILL" and status != signal.SIGKILL:
                problems.append(f"status {status}")
            if fault != "SIGKILL" and len(complete) < STEPS - 1:
                problems.append(f"one error, and only {complete} complete")
            yield f"{fault} at {at}", problems + look(folder, max(complete, default=0), 1 + at % 3)
        at += every


def cuts(every: int, begin: int) -> Iterator[tuple[str, list[str]]]:
    """Cuts each file of the newest generation at byte after byte: it is named, and the older one is taken."""
    with tempfile.TemporaryDirectory(prefix="checkpoints-") as name:
        folder = Path(name, "runs")
        folder.mkdir()
        forked(folder, "SIGKILL", -1)
        newest = places.path_of(folder, STEPS)
        for path in sorted(newest.iterdir()):
            content = path.read_bytes()
            for length in range(begin % every, len(content), every):
                path.write_bytes(content[:length])
                held = state(0)
                problems = []
                with _logged() as words, checkpoint.Manager(folder, held, every=1, keep=2) as manager:
                    step = manager.restore()
                whole = length >= _last_byte_of_state(newest, path)
                if step != (STEPS if whole else STEPS - 1):
                    problems.append(f"step {step} was restored")
                if held["weight"].unique().tolist() != [step]:
                    problems.append("other values")
                if not whole and not any(str(path) in word for word in words):
                    problems.append(f"the file is not named: {words}")
                yield f"{path.name} cut at {length}", problems
            path.write_bytes(content)


def _last_byte_of_state(generation: Path, path: Path) -> int:
    """Where a file ends for readers of state: the last piece's end; only the whole manifest is one."""
    if path.suffix == ".json":
        return path.stat().st_size + (1 << 60)
    from ddp.checkpoint.loading import read_manifest

    tensors = read_manifest(generation).tensors.values()
    return max((p.offset + p.size for stored in tensors for p in stored.pieces if p.file == path.name), default=0)


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    words: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
    places.logger.addHandler(handler)
    propagate, places.logger.propagate = places.logger.propagate, False
    try:
        yield words
    finally:
        places.logger.removeHandler(handler)
        places.logger.propagate = propagate


def campaign(every: int, begin: int, faults: list[str]) -> dict[str, Counter[str]]:
    """How often each fault struck, and what came of it."""
    table: dict[str, Counter[str]] = {}
    with _logged():
        for fault in faults:
            table[fault] = Counter()
            for case, problems in cuts(4 * every, begin) if fault == "cut" else cases(fault, every, begin):
                table[fault]["right" if not problems else f"{case}: {'; '.join(problems)}"] += 1
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="strike at every k-th operation; cut at every 4k-th byte")
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    options = parser.parse_args(arguments)
    table = campaign(options.every, options.begin, options.faults)
    print("| fault | struck | newest complete loaded, rest swept, nothing left |\n|---|---|---|")
    for fault, outcomes in table.items():
        print(f"| {fault} | {outcomes.total()} | {outcomes['right']} |")
    wrong = [words for outcomes in table.values() for words in outcomes if words != "right"]
    print(*wrong[:20], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
