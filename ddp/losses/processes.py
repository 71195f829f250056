"""What the kernel says of processes of this host. Linux only; elsewhere it knows of none."""

from pathlib import Path

PARENT, STARTED = 1, 19
"""Places in what `status_of` returns."""

_STOPPED = ("T", "t")  # by a signal, by a debugger


def status_of(pid: int) -> list[str]:
    """What /proc/PID/stat says of a process, from its state on; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_stopped(status: list[str]) -> bool:
    """Whether a process of this status is there, and does not run until somebody lets it."""
    return bool(status) and status[0] in _STOPPED
