"""Entering the world under a time limit: until the ranks can read each other's pages (`ddp.watching.watchdog`), a
thread of each looks at the clock.

A rank that waits there for others says so after a minute, or half the timeout if that is less, and again whenever the
time has doubled; at the timeout it ends the job. Nothing is known of the others but what this host's processes show:
one that is stopped, or waits for a disk, is named.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ddp.watching.progress import Channel, begin_wait, channels, end_wait
from ddp.watching.verdict import format_stack
from ddp.watching.watchdog import OWN_CODE, SOFT, stack_of_main_thread
from ddp.world import bootstrap

_CHANNEL = "the start of the world"
# What the launchers of each MPI call a rank, and the job that it belongs to.
_RANKS = (("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"), ("PMI_RANK", "PMI_JOBID"), ("SLURM_PROCID", "SLURM_JOB_ID"))
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a disk or a network file system"}


@contextmanager
def limited(timeout: float) -> Iterator[None]:
    """Around what waits for other ranks while the world is entered. timeout: seconds, after which the job is ended."""
    channel = channels.get(_CHANNEL) or Channel(_CHANNEL, ())
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(over, timeout), name="ddp start", daemon=True)
    thread.start()
    begin_wait(channel, channel.contribute(), "init_process_group")
    try:
        yield
    finally:
        end_wait()
        over.set()
        thread.join()


def _watch(over: threading.Event, timeout: float) -> None:
    began, due = time.monotonic(), min(SOFT, timeout / 2)
    while not over.wait(max(0.0, began + min(due, timeout) - time.monotonic())):
        seconds = time.monotonic() - began
        ends = seconds >= timeout
        rank = _rank_of(os.environ)
        who = "this process" if rank is None else f"rank {rank[0]}"
        then = "the job is ended" if ends else f"after {timeout:g} s this ends the job"
        where = format_stack(stack_of_main_thread(), OWN_CODE)
        sys.stderr.write(
            f"ddp watchdog on {socket.gethostname()}: {who} has been waiting in init_process_group for {seconds:.0f} "
            f"s, for {' and '.join(_conspicuous()) or 'ranks that have not come or do not answer'}; {then}\n"
            f"{who} is at\n{where}\n"
        )
        sys.stderr.flush()
        if ends and not over.is_set():
            bootstrap.abort(1)
        due *= 2


def _conspicuous() -> list[str]:
    """Ranks of this job on this host that the kernel says do nothing, in words."""
    own, found = _rank_of(os.environ), []
    if own is None:
        return []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended, or belongs to another user
            continue
        rank = _rank_of(dict(word.split("=", 1) for word in words if "=" in word))
        if rank is not None and rank[1] == own[1] and rank != own and state in _STATES:
            found.append((int(rank[0]), f"rank {rank[0]} (process {folder.name}), which {_STATES[state]}"))
    return [text for _, text in sorted(found)]


def _rank_of(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The rank of a process with this environment, and the name of its job."""
    for rank, job in _RANKS:
        if environment.get(rank, "").isdecimal():
            return environment[rank], environment.get(job, "")
    return None
