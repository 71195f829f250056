"""Ranks that are lost while the others go on (`ddprun --elastic`): options, what ddprun was asked for; watch, how a
loss is noticed; world, who goes on; deadlock, who does not; pmix, how MPI learns of it; processes, what the kernel says
of them; words, why; ending, how a rank ends alone; keepers, who is told; roles, meeting, reserve and nursery, who
replaces it; limit, when it is enough. What follows from it is `ddp.job.recovery`.
"""

from ddp.losses.ending import at_step, dies_alone, end_together, give_place
from ddp.losses.keepers import Keeper, keepers
from ddp.losses.limit import limit
from ddp.losses.meanwhile import meanwhile
from ddp.losses.meeting import Meeting, call, called, coming, meet
from ddp.losses.options import MINIMUM, in_reserve, minimum, refuse
from ddp.losses.reserve import join, outside
from ddp.losses.roles import WORKING, Standing, furthest
from ddp.losses.transactions import attempt_by, between, come
from ddp.losses.words import Member, Process, excuse, kill_stopped_far
from ddp.losses.world import (
    begin,
    happened,
    is_behind,
    met,
    own_number,
    reason,
    shrink,
    tells_of_loss,
    untold,
    watching,
)

__all__ = [
    "MINIMUM",
    "WORKING",
    "Keeper",
    "Meeting",
    "Member",
    "Process",
    "Standing",
    "at_step",
    "attempt_by",
    "begin",
    "between",
    "call",
    "called",
    "come",
    "coming",
    "dies_alone",
    "end_together",
    "excuse",
    "furthest",
    "give_place",
    "happened",
    "in_reserve",
    "is_behind",
    "join",
    "keepers",
    "kill_stopped_far",
    "limit",
    "meanwhile",
    "meet",
    "met",
    "minimum",
    "outside",
    "own_number",
    "reason",
    "refuse",
    "shrink",
    "tells_of_loss",
    "untold",
    "watching",
]
