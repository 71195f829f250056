"""All processes meet after a loss, or where one calls them: who works from now on, and by which communicator.

One that waits in reserve, or starts, takes part as well (`ddp.losses.reserve`).
"""

from typing import TYPE_CHECKING, NamedTuple

from ddp.losses import calls, world
from ddp.losses.options import in_reserve
from ddp.losses.roles import READY, STARTING, Deal, Standing, deal

if TYPE_CHECKING:
    from mpi4py import MPI


class Meeting(NamedTuple):
    """What has come of it. comm: of those that work from now on, MPI.COMM_NULL in others. place: of this process."""

    comm: "MPI.Intracomm"
    standings: list[Standing]
    deal: Deal
    place: int


def meet(own: Standing) -> Meeting:
    """Collective over all processes, after `ddp.losses.world.shrink`."""
    watching = world.watching()
    assert watching is not None
    comm = watching.comm
    standings = comm.allgather(own)
    if not in_reserve():
        return Meeting(comm, standings, Deal([*range(comm.size)], [], {}, []), comm.rank)
    from mpi4py import MPI

    dealt = deal(standings, world.ranks())
    working = comm.Split(0 if comm.rank in dealt.working else MPI.UNDEFINED, comm.rank)
    comm.Barrier()  # a communicator that is revoked while it is being made crashes Open MPI 5.0.11: all have theirs now
    watching.work_by(dealt.working)
    on_the_way = {at for at, each in enumerate(standings) if each.role in (STARTING, READY)}
    on_the_way = (on_the_way | dealt.promoted.keys()).difference(dealt.joined, dealt.refused)
    watching.coming = [watching.members[at].pid for at in on_the_way]
    watching.nurse = None if dealt.nurse is None else watching.members[dealt.nurse].pid
    if dealt.free and watching.nurse is not None:
        watching.coming.append(watching.nurse)  # with whom another comes
    return Meeting(working, standings, dealt, comm.rank)


def coming() -> bool:
    """Whether a process is on its way to work."""
    watching = world.watching()
    return watching is not None and bool(watching.coming)


def call() -> bool:
    """Where a process is ready to work, or has ended that was to, calls all of them, this one too, and returns true."""
    watching = world.watching()
    if watching is None:
        return False
    awaited = {*watching.coming, *(() if watching.nurse is None else (watching.nurse,))}
    if not any(calls.is_ready(pid) or watching.has_ended(pid) for pid in awaited):
        return False
    calls.call([member.pid for member in watching.members])
    watching.noticed.wait()
    return True


def called(seconds: float) -> bool:
    """Waits for a loss, or a call, so long at most; whether there was one."""
    watching = world.watching()
    assert watching is not None
    return watching.noticed.wait(seconds)
