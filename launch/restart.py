"""A job that is started again when it has lost ranks or hosts (`--max-restarts`): when, when not, and where.

Its script goes on from its newest checkpoint; torchrun's variables tell it how often it was started. An error of the
script that comes twice in a row is a bug and no lost rank: then the job ends as it would without.
"""

import itertools
import signal
from collections.abc import Callable, Collection
from typing import NamedTuple

from launch.hosts import Found
from launch.roll import Roll, cause

COUNT, MOST = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"

RENEWAL = signal.SIGUSR1
"""On which ranks write a checkpoint and end, with 128 and its number as exit code."""


class Ended(NamedTuple):
    """How one start of the job has ended."""

    code: int
    stopped: bool
    """By a signal to ddprun."""
    roll: Roll
    words: str = ""
    """What there is to say of that."""


def run(start: Callable[[int, Collection[str]], Ended | None], most: int, say: Callable[[str], None]) -> int:
    """Starts the job, and again up to `most` times; returns the exit code of the last time. Says how each has ended.
    A job that was asked to end, to get another mpirun, has not failed, and is started again whatever `most` is.

    start: takes how often the job was started before, and the hosts that no longer answered; it returns None where
    nothing was to be started. Where it brings no rank to life, hosts that were doubtful before do not answer, either.
    """
    lost: dict[str, None] = {}
    doubtful: list[str] = []
    error = ""
    failed = 0
    for number in itertools.count():
        ended = start(number, lost)
        if ended is None:
            return 0
        code, stopped, roll, words = ended
        if code == 0 or stopped or most == 0:
            if words:
                say(words if code == 0 else f"error: {words}")
            return code
        if roll.renewed and code == 128 + RENEWAL:  # which has been said
            continue
        if failed == most:
            say(
                f"error: {cause(roll, code)}; the job was started {number + 1} times, as often as --max-restarts allows"
            )
            return code
        if roll.error and roll.error == error:
            say(f"error: {cause(roll, code)} by the same error as before, which another start does not mend")
            return code
        error = roll.error
        if not roll.ranks:
            roll.lost += doubtful
        lost |= dict.fromkeys(roll.lost)
        doubtful = roll.doubtful
        failed += 1
        say(f"{cause(roll, code)}; the job is started again ({failed} of {most})")
    raise AssertionError("unreachable")


def without(found: Found, nproc: int | None, lost: Collection[str]) -> tuple[Found, int | None]:
    """The hosts that are left, with at most as many ranks as they take. Names may be long on one side and short on the
    other. Where all are gone, or mpirun finds the hosts by itself, nothing changes.
    """
    gone = {name.partition(".")[0] for name in lost}
    left = tuple(host for host in found.hosts if host.name.partition(".")[0] not in gone)
    if not gone or not left or len(left) == len(found.hosts):
        return found, nproc
    slots = sum(host.slots for host in left)
    return found._replace(hosts=left), None if nproc is None else min(nproc, slots)
