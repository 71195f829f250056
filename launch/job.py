"""Runs one mpirun to its end: passes signals on, gives grace, leaves no process behind."""

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE = 5.0  # seconds between asking a job to end and killing it
# Every process of the job inherits it, whatever process group or session it puts itself into.
JOB_VARIABLE = "DDPRUN_JOB"

_TICK = 0.1  # seconds between looks at mpirun's children: 50 us each
_CLEAN_UP = 5.0  # seconds that mpirun takes at most to end itself after the last of them
_FROM_KERNEL = 0x80  # SI_KERNEL: the terminal sent it, and so to mpirun as well
_PR_SET_PDEATHSIG = 1


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs `argv`, an mpirun command, and returns the exit code of the job, 128 + the signal's number if one ended it.

    mpirun stays in this process group, so that the terminal's Ctrl-C, Ctrl-Z and input reach it as they would alone.
    """
    job = f"{os.getpid()}-{time.time_ns()}"
    libc = ctypes.CDLL(None)
    # What this process was started to ignore, as by nohup, is left ignored.
    stops = {one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN}
    watched = stops | {signal.SIGCHLD}

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # should this process be killed, mpirun ends the job

    # Blocked and fetched one by one: only then a signal says who sent it.
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    process = subprocess.Popen(argv, env={**environ, JOB_VARIABLE: job}, preexec_fn=in_child)
    stopped_by, at_once = _wait(process, watched)
    _end_leftovers(job, stops, at_once)
    code = process.wait()
    if stopped_by is not None:
        return 128 + stopped_by
    if at_once:
        print("ddprun: mpirun did not end when its ranks had and was killed; their exit code is lost", file=sys.stderr)
        return 1
    return 128 - code if code < 0 else code


def _wait(process: subprocess.Popen[bytes], watched: set[signal.Signals]) -> tuple[int | None, bool]:
    """Waits until mpirun ends, hangs although its ranks have ended, or does not end within the grace when asked to.

    Returns the signal that asked it to end, if one did, and whether to wait no more: it hangs, or was asked twice.
    """
    stopped_by, deadline = None, math.inf
    had_children, last_seen = False, math.inf
    while process.poll() is None and time.monotonic() < deadline:
        info = signal.sigtimedwait(watched, _TICK)
        if info is None or info.si_signo == signal.SIGCHLD:
            # Open MPI 5.0.11 on two hosts locked itself up in its own clean-up in 3 of 25 jobs that a rank aborted.
            if _has_children(process.pid):
                had_children, last_seen = True, time.monotonic()
            elif had_children and time.monotonic() > last_seen + _CLEAN_UP:
                return stopped_by, True
        elif stopped_by is not None:
            return stopped_by, True
        else:
            stopped_by, deadline = info.si_signo, time.monotonic() + GRACE
            if info.si_code != _FROM_KERNEL:
                process.terminate()
    return stopped_by, False


def _has_children(pid: int) -> bool:
    """Whether a process has children that are still running: mpirun's ranks, and its agents for other hosts."""
    try:
        children = [c for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
        # The state follows the command's name, which may hold anything but ends in the last parenthesis.
        return any(Path(f"/proc/{c}/stat").read_text().rpartition(")")[2].split()[0] != "Z" for c in children)
    except (FileNotFoundError, ProcessLookupError):
        return True  # one ended while this looked; the next look tells


def _end_leftovers(job: str, stops: set[signal.Signals], at_once: bool) -> None:
    """Ends what is still there of the job on this machine: ranks of a killed mpirun, children that outlived a rank."""
    deadline = time.monotonic() + (0.0 if at_once else GRACE)
    asked: set[int] = set()
    while members := _members(job):
        late = time.monotonic() >= deadline
        for pid in members if late else members - asked:
            try:
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            except ProcessLookupError:
                continue  # it ended by itself meanwhile
        asked |= members
        if signal.sigtimedwait(stops, 0.02) is not None:  # asked again
            deadline = 0.0


def _members(job: str) -> set[int]:
    """The processes on this machine that inherited the mark of the job, zombies not counted."""
    mark = f"{JOB_VARIABLE}={job}".encode()
    members = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # gone meanwhile, or of another user
        if mark in environment.split(b"\0"):
            members.add(int(entry.name))
    return members
