"""Communication under way that makes progress only while somebody calls it: collectives, to begin with.

Whoever waits for anything moves it on: another rank may wait for one of these first, and come only then to what is
waited for here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ddp.transport.pausing import pause

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.transport.room import Room

LOOKS_BETWEEN = 64  # at one thing, before something else gets a chance


class UnderWay(Protocol):
    """What a group has under way."""

    def advance(self) -> None:
        """Do what has become possible; never blocks."""
        ...

    def requests(self) -> "list[MPI.Request]":
        """What has to happen in MPI before `advance` can do more."""
        ...

    def watched(self) -> "Room | None":
        """The memory in which something has to happen before that."""
        ...


under_way: dict[int, UnderWay] = {}
"""By id."""


def have_come(requests: "list[MPI.Request]") -> bool:
    """Whether all of these have happened; those that have are taken out."""
    requests[:] = [request for request in requests if not request.Test()]
    return not requests


def advance_all() -> None:
    """Do what has become possible, for everything; never blocks."""
    for one in tuple(under_way.values()):
        one.advance()


def wait_a_little(own: "Sequence[MPI.Request]", looks: int) -> None:
    """Until one of these requests, or something under way, may have come further. looks: so many in vain before."""
    room = next((room for one in under_way.values() if (room := one.watched()) is not None), None)
    if room is not None:
        room.looks += 1
        pause(room.looks, room.spins)
        if looks % LOOKS_BETWEEN == 0:  # MPI sees its own messages off
            room.comm.Iprobe()
        return
    # Blocks inside MPI, where all requests progress and where the user's mpi_yield_when_idle rules.
    requests = [*own, *(request for one in under_way.values() for request in one.requests())]
    once = list({id(request): request for request in requests}.values())  # as MPI wants it
    once[0].Waitany(once)
