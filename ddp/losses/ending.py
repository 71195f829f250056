"""How a rank ends where the others go on without it; asked by what `ddprun` runs on each rank (launch/rank.py)."""

import os
import signal
import sys
from typing import NoReturn

from ddp.losses import reserve, words
from ddp.losses.world import met, watching

_step = 0  # of the job that is being trained
_agreed = False


def at_step(number: int) -> None:
    """The job's step, counted from 1."""
    global _step
    _step = number
    words.note_step(number)


def end_together() -> None:
    """All ranks end now, each for itself, as they have agreed."""
    global _agreed
    _agreed = True


def give_place() -> NoReturn:
    """This rank ends, and another process takes its place."""
    why = f"it gives its place to a new process: MPI keeps memory of the {met()} that it has seen come"
    words.leave(_step, "", why)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def dies_alone(why: str, error: str) -> bool:
    """Whether a rank that has failed ends without the others, who are left its reason, in words.

    Where nobody else is left it does not; nor where the same error has come at the same step before: then it is no
    loss but a bug, and the job is to end with it. error: see `ddp.losses.words.leave`.
    """
    watch = watching()
    if watch is None:
        return False
    if reserve.outside() is not None:
        words.leave(_step, "", why)
        return True
    if _agreed:  # asked before what was noticed: that another rank has ended already is no loss then
        return True
    if watch.noticed.is_set():
        sys.stderr.write(
            "ddp: error: a rank was lost where the others cannot go on without it: what ranks do together belongs into "
            "Job.run or Job.between (docs/howto/elastic.md)\n"
        )
        return False
    return len(watch.working) > 1 and words.leave(_step, error, why)
