"""Ranks that are lost while the others go on (`ddprun --elastic`): watch, how it is noticed; words, why; ending, how a
rank ends alone; keepers, who is told. What follows from it is `ddp.job.recovery`.
"""

from ddp.losses.ending import at_step, current_step, dies_alone, end_together
from ddp.losses.keepers import Keeper, keepers
from ddp.losses.transactions import attempt_by, between
from ddp.losses.watch import MINIMUM, begin, happened, is_behind, minimum, refuse, shrink, untold, watching
from ddp.losses.words import Member, excuse, reason

__all__ = [
    "MINIMUM",
    "Keeper",
    "Member",
    "at_step",
    "attempt_by",
    "begin",
    "between",
    "current_step",
    "dies_alone",
    "end_together",
    "excuse",
    "happened",
    "is_behind",
    "keepers",
    "minimum",
    "reason",
    "refuse",
    "shrink",
    "untold",
    "watching",
]
