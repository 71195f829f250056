"""What a job says of ranks that are lost, and of those that replace them."""

import sys
from collections.abc import Mapping, Sequence

from ddp import losses
from ddp.world.ranks import name_ranks

_UNKNOWN = "killed, or crashed"


def tell(
    meeting: losses.Meeting, step: int, lost: Sequence[losses.Member], of_reserve: Sequence[losses.Member]
) -> None:
    """Says what has come of a meeting. step: the one that is run next; lost, of_reserve: ranks, and other processes."""
    left = meeting.comm.size
    then = f"the job goes on with {left} rank{'' if left == 1 else 's'}"
    if losses.coming():
        then += ", and more are starting"
    if lost:
        reasons = dict(reason for each in meeting.standings for reason in each.reasons)
        say(f"{_in_words(lost, step, reasons)}; {then}")
    for member in of_reserve:
        say(f"a process in reserve was lost ({losses.reason(member) or _UNKNOWN})")
    if meeting.deal.joined:
        numbers = [meeting.standings[at].number for at in meeting.deal.joined]
        say(f"{name_ranks(numbers)} {'is' if len(numbers) == 1 else 'are'} replaced from step {step} on; {then}")


def say(words: str) -> None:
    """Prints a line for the user."""
    sys.stderr.write(f"ddp: {words}\n")
    sys.stderr.flush()


def _in_words(lost: Sequence[losses.Member], step: int, reasons: Mapping[losses.Process, str]) -> str:
    which = name_ranks([member.number for member in lost])
    why = [reasons.get(member.process, _UNKNOWN) for member in lost]
    if len(lost) > 1:
        why = [f"rank {member.number}: {words}" for member, words in zip(lost, why, strict=True)]
    return f"{which} {'was' if len(lost) == 1 else 'were'} lost at step {step} ({'; '.join(why)})"
