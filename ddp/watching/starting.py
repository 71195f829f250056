"""Entering the world under a time limit: until the ranks can read each other's pages (`ddp.watching.watchdog`), a
thread of each looks at the clock.

A rank that waits there for others says so after a minute, or half the timeout if that is less, and again whenever the
time has doubled; at the timeout it ends the job. Nothing is known of the others but what this host's processes show: a
rank that is stopped is named, and one that waits for a disk, or whose process has not come here, or is not there at
all. That a process is here the name of its thread says, which the kernel shows.
"""

import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ddp import losses
from ddp.losses.processes import status_of
from ddp.watching.last_resort import end_this_host
from ddp.watching.progress import Channel, begin_wait, channels, end_wait
from ddp.watching.record import stack_of_main_thread
from ddp.watching.telling import OWN_CODE, SOFT
from ddp.watching.verdict import format_stack
from ddp.world import bootstrap
from ddp.world.bootstrap import read_launch

_CHANNEL = "the start of the world"
_THREAD = "ddp start"  # at most 15 characters
_PR_SET_NAME = 15
# What the launchers of each MPI call a rank, and the job that it belongs to.
_RANKS = (("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"), ("PMI_RANK", "PMI_JOBID"), ("SLURM_PROCID", "SLURM_JOB_ID"))
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a disk or a network file system"}


@contextmanager
def limited(timeout: float, among: Collection[int] | None = None) -> Iterator[None]:
    """Around what waits for other ranks while the world is entered. timeout: seconds, after which the job is ended.

    among: the ranks, as their launcher counts them, that do so; None: all.
    """
    channel = channels.get(_CHANNEL) or Channel(_CHANNEL, ())
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(over, timeout, among), name=_THREAD, daemon=True)
    thread.start()
    begin_wait(channel, channel.contribute(), "init_process_group")
    try:
        yield
    finally:
        end_wait()
        over.set()
        thread.join()


def _watch(over: threading.Event, timeout: float, among: Collection[int] | None) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, _THREAD.encode())
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
            f"s, for {_the_late(among)}; {then}\n"
            f"{who} is at\n{where}\n"
        )
        sys.stderr.flush()
        if ends and not over.is_set():
            # Open MPI's launcher may wait for ever for a rank that it wakes from its stop and kills as it connects.
            end_this_host(_all_processes())
            bootstrap.abort(1)
        due *= 2


def _the_late(among: Collection[int] | None) -> str:
    """Whom this rank waits for, in words, as far as this host's processes tell."""
    own = _rank_of(os.environ)
    seen = {} if own is None else _processes_of(own[1])
    launch = read_launch(os.environ)
    alone = launch is not None and _on_one_host(launch.size + losses.in_reserve())
    here = range(launch.size) if launch is not None and alone else sorted(seen)
    found = []
    for rank in here:
        if own is None or rank == int(own[0]) or (among is not None and rank not in among):
            continue
        processes = seen.get(rank, [])
        if not processes:
            found.append(f"rank {rank}, of which there is no process")
        elif stopped := [one for one in processes if one.state in _STATES]:
            found.append(f"rank {rank} (process {stopped[0].number}), which {_STATES[stopped[0].state]}")
        elif not any(one.is_here for one in processes):
            found.append(f"rank {rank} (process {processes[0].number}), which has not come to init_process_group")
    return " and ".join(found) or "ranks that have not come or do not answer"


def _all_processes() -> list[int]:
    """The processes of this job on this host."""
    own = _rank_of(os.environ)
    seen = {} if own is None else _processes_of(own[1])
    return [one.number for processes in seen.values() for one in processes]


class _Process(NamedTuple):
    number: int
    state: str
    is_here: bool
    """Whether it is inside of `limited`."""


def _processes_of(job: str) -> dict[int, list[_Process]]:
    """The processes of each rank of this job on this host, by number: a rank's own before those that it has started."""
    found: dict[int, list[_Process]] = {}
    for number in sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        folder = Path(f"/proc/{number}")
        try:
            words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            threads = [(thread / "comm").read_text().rstrip("\n") for thread in (folder / "task").iterdir()]
        except OSError:  # it has ended, or belongs to another user
            continue
        rank, status = _rank_of(dict(word.split("=", 1) for word in words if "=" in word)), status_of(number)
        if rank is not None and rank[1] == job and status:
            found.setdefault(int(rank[0]), []).append(_Process(number, status[0], _THREAD in threads))
    return found


def _on_one_host(size: int) -> bool:
    """Whether the launcher says so; what it does not say is not known."""
    return any(os.environ.get(name) == str(size) for name in _LOCAL_SIZES)


def _rank_of(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The rank of a process with this environment, and the name of its job."""
    for rank, job in _RANKS:
        if environment.get(rank, "").isdecimal():
            return environment[rank], environment.get(job, "")
    return None
