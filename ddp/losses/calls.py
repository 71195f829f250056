"""How one process calls all to a meeting, as if somebody were lost: a byte into a pipe of each, in the job's folder."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ddp.losses.words import job_folder

_own: int | None = None


def listen() -> None:
    """From now on this process can be called."""
    global _own
    os.mkfifo(_pipe(os.getpid()), 0o600)
    _own = os.open(_pipe(os.getpid()), os.O_RDWR | os.O_NONBLOCK)


def descriptor() -> int | None:
    """Can be read when this process was called; None where nobody calls."""
    return _own


def forget() -> None:
    """Calls that have come so far are answered."""
    if _own is not None:
        with contextlib.suppress(BlockingIOError):
            while os.read(_own, 64):
                pass


def call(pids: Iterable[int]) -> None:
    """Calls these processes; those that have ended are left out."""
    for pid in pids:
        with contextlib.suppress(OSError):
            pipe = os.open(_pipe(pid), os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"!")
            os.close(pipe)


def say_ready() -> None:
    """Tells who looks for it that this process waits to be called."""
    _mark(os.getpid()).touch()


def say_unready() -> None:
    """The same no longer holds."""
    _mark(os.getpid()).unlink(missing_ok=True)


def is_ready(pid: int) -> bool:
    """Whether a process has said so."""
    return _mark(pid).exists()


def _pipe(pid: int) -> Path:
    return job_folder() / f"call-{pid}"


def _mark(pid: int) -> Path:
    return job_folder() / f"ready-{pid}"
