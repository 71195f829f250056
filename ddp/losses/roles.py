"""Who works, who waits in reserve, and who is on the way from the one to the other (`ddprun --elastic MIN:N`).

After each loss all processes meet, say where they stand, and draw the same conclusions from it. Who waits longest is
the next to work; who came last stays where it is: it starts new ones (`ddp.losses.nursery`). Of each of those Open MPI
keeps memory in every process that has met it, so a rank that has met many gives its place to another process: none is
much older than the others.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ddp.losses.words import Process

ENOUGH = 2
"""How many wait: the one that starts others, and another one."""

MOST_MET = 50
"""How many processes a rank sees come; 0.4 to 0.7 MB each."""

WORKING = "working"
WAITING = "waiting"  # in reserve
STARTING = "starting"  # runs its script, alone so far
READY = "ready"  # what it does next is to be a step of the job


class Standing(NamedTuple):
    """What a process says of itself when all meet. number: of the rank that it is, or is to replace."""

    role: str
    number: int
    done: int = 0
    """Transactions that it has committed."""
    meets: bool = False
    """Whether it stands in the commit of the next one."""
    runs: bool = False
    """Whether that is a step, and not something between two."""
    step: int = 0
    """Steps that are done."""
    current: bool = True
    """Whether it has the state of the job."""
    shards: int = 0
    """Into how many the job is divided."""
    made: tuple[int, int] = (0, 0)
    """How many models it has wrapped, and how many managers of checkpoints it has made."""
    reducers: int = 0
    """How many times buckets of gradients were made, by which their meetings are named."""
    failures: tuple[float, ...] = ()
    """When ranks were lost, as far as that is limited."""
    futile: int = 0
    """Processes of the reserve that were lost since one of them has joined."""
    met: int = 0
    """Processes that have come since it did."""
    barren: bool = False
    """Whether it has found that it cannot start new processes."""
    reasons: tuple[tuple[Process, str], ...] = ()
    """Why ranks were lost, as far as it knows."""


class Deal(NamedTuple):
    """What follows: processes by their places in the meeting."""

    working: list[int]
    """From now on, in the order of their ranks."""
    joined: list[int]
    """Those of them that have just come."""
    promoted: dict[int, int]
    """Those that waited and start now, each with the number of the rank that it is to replace."""
    refused: list[int]
    """Those that are ready, and have not made what the others have."""
    nurse: int | None = None
    """Who starts new processes."""
    waiting: int = 0
    """How many wait now, the nurse among them."""
    free: int = 0
    """How many ranks nobody is, nor is to replace."""
    relieved: int | None = None
    """Who of those that work is to end, so that another one takes its place."""


def furthest(standings: Sequence[Standing]) -> int:
    """How many transactions the job has committed."""
    return max(each.done for each in standings if each.role == WORKING)


def deal(standings: Sequence[Standing], ranks: int) -> Deal:
    """ranks: how many are to work. Somebody joins at the beginning of a step only: its script has come to one, too."""
    places = {role: [at for at, each in enumerate(standings) if each.role == role] for role in _ROLES}
    if not places[WORKING]:
        return Deal([], [], {}, [])
    done = furthest(standings)
    first = [standings[at] for at in places[WORKING] if standings[at].done == done]
    at_a_step = all(each.runs for each in first)
    fit = [at for at in places[READY] if standings[at].made == first[0].made]
    joined = fit if at_a_step else []
    refused = [at for at in places[READY] if at not in fit] if at_a_step else []
    coming = [at for at, each in enumerate(standings) if each.role != WAITING and at not in refused]
    free = sorted({*range(ranks)} - {standings[at].number for at in coming})
    able = first[0].futile < ranks  # else they are lost by what they do, and more would be
    nurse = next((at for at in reversed(places[WAITING]) if able and not standings[at].barren), None)
    promoted = dict(zip([at for at in places[WAITING] if at != nurse], free, strict=False)) if able else {}
    waiting = len(places[WAITING]) - len(promoted)
    working = sorted([*places[WORKING], *joined])
    relieved = None
    if len(working) == ranks and waiting >= ENOUGH:
        relieved = _relieved(standings, places[WORKING])
    return Deal(working, joined, promoted, refused, nurse, waiting, len(free) - len(promoted), relieved)


def _relieved(standings: Sequence[Standing], working: Sequence[int]) -> int | None:
    """The one of these that has met most, if that is too many, and others have the state of the job as well."""
    oldest = max(working, key=lambda at: standings[at].met)
    others = any(standings[at].current for at in working if at != oldest)
    return oldest if others and standings[oldest].met >= MOST_MET else None


_ROLES = (WORKING, WAITING, STARTING, READY)
