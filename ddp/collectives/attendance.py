"""A barrier that says who did not come: rank 0 of the group takes the attendance."""

import datetime
import time
from typing import TYPE_CHECKING

import numpy as np

from ddp.collectives.members import members_of
from ddp.execution.calls import calling_line
from ddp.groups.group import seconds_of
from ddp.groups.process_group import ProcessGroup
from ddp.world.ranks import name_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

_POLL = 1e-3  # seconds
_TAGS = range(20_100, 30_000)  # MPI has at least 32767; user code is unlikely to be here

_on_their_way: list["MPI.Request"] = []  # to ranks that may never come; kept, since MPI reads what they hold


def monitored_barrier(
    group: ProcessGroup | None = None,
    timeout: datetime.timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Returns when all ranks have called it; otherwise raises RuntimeError, after `timeout`, naming those missing.

    timeout: by default the group's; a number is seconds. All who are missing are named, which `wait_all_ranks` asks for
    in PyTorch. A rank that comes too late raises the same. Slower than `barrier`: for finding out who is missing.
    """
    members = members_of("monitored_barrier", group)
    if members is None:
        return
    if isinstance(timeout, int | float):
        timeout = datetime.timedelta(seconds=timeout)
    seconds = seconds_of("monitored_barrier", timeout, members.timeout)
    if members.comm is None or members.size() == 1:
        return
    tag = _TAGS[members.barriers % len(_TAGS)]
    members.barriers += 1
    missing = (_take_attendance if members.rank == 0 else _attend)(members.comm, tag, seconds)
    if missing:
        members.unsettled += 1  # what was sent to those that are missing
        names = name_ranks([members.ranks[rank] for rank in missing])
        raise RuntimeError(
            f"[Rank {members.ranks[members.rank]}]: {names} failed to pass monitored_barrier in {seconds:g} s "
            f"({calling_line()})"
        )


def _take_attendance(comm: "MPI.Intracomm", tag: int, seconds: float) -> list[int]:
    """On rank 0: the ranks that did not come in time. Everybody is told, those that come later, too."""
    tokens = {rank: bytearray(1) for rank in range(1, comm.size)}
    requests = {rank: comm.Irecv(token, rank, tag) for rank, token in tokens.items()}
    deadline = time.monotonic() + seconds
    while missing := [rank for rank, request in requests.items() if not request.Test()]:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL)
    absent = np.zeros(comm.size, np.uint8)
    absent[missing] = 1
    _keep([comm.Isend(np.packbits(absent), rank, tag) for rank in tokens])
    _keep([requests[rank] for rank in missing])
    return missing


def _attend(comm: "MPI.Intracomm", tag: int, seconds: float) -> list[int]:
    """On the other ranks: what rank 0 says, or [0] if it says nothing."""
    _keep([comm.Isend(bytes(1), 0, tag)])
    answer = np.packbits(np.zeros(comm.size, np.uint8))  # a bit for each rank that is missing
    request = comm.Irecv(answer, 0, tag)
    deadline = time.monotonic() + seconds + 1.0  # rank 0 may have started a little later
    while not request.Test():
        if time.monotonic() > deadline:
            return [0]
        time.sleep(_POLL)
    return np.flatnonzero(np.unpackbits(answer, count=comm.size)).tolist()


def _keep(requests: "list[MPI.Request]") -> None:
    """Messages that nobody waits for here: what they hold must live until they are gone."""
    _on_their_way[:] = [request for request in _on_their_way if not request.Test()]
    _on_their_way.extend(requests)
