"""Ranks that are stopped while others recover from a loss: the watchdog is between two worlds then, and sees nobody.

Only a process that the kernel calls stopped counts. One that is late may be busy, and will come. On other hosts
ddprun's guards look, whenever one rank of each host asks: all ranks of a host may be stopped.

The watchdog looks, too, while it waits. Otherwise two that are stopped at once on two hosts would cost two time-outs:
who waits for one of them starts the recovery, in which the other one would be looked at for the first time.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ddp import losses
from ddp.losses.processes import STARTED, is_stopped, status_of

_PERIOD = 0.25  # seconds between looks at a process, of 10 µs each
_LONGEST = 2.0  # seconds between two looks that belong together


@contextlib.contextmanager
def none_stands_still(seconds: float) -> Iterator[None]:
    """Within the block, ranks that are stopped for so many seconds are killed: then they are lost, too.

    Linux only, where alone ranks may be lost.
    """
    assert sys.platform == "linux"
    with losses.meanwhile(lambda over: _run(seconds, over), "ddp standstill"):
        yield


def look(members: Iterable[losses.Member]) -> list[losses.Member]:
    """Notes which of these, on this host, are stopped; to be called again and again while others wait. Returns those
    that are awake.
    """
    return [each for each in members if each.is_here and _is_awake(each)]


def _run(seconds: float, over: threading.Event) -> None:
    questions = 0
    why = f"stopped while others recovered: no answer for {seconds:g} s"
    while not over.wait(_PERIOD):
        watch = losses.watching()
        if watch is None:
            continue
        awake = look(watch.members)
        for each in watch.members:
            if each.is_here and _stopped_for(each) >= seconds:
                losses.excuse(each, why)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
        if [each.pid for each in awake[:1]] == [os.getpid()]:  # one of each host asks
            far = [each for each in watch.members if not each.is_here]
            for host in {each.host for each in far}:
                losses.kill_stopped_far(host, [each.pid for each in far if each.host == host], seconds)
            questions += 1
            if questions * _PERIOD >= seconds:
                for each in far:
                    watch.far_reasons.setdefault(each.process, why)  # if it is lost after all
    if (watch := losses.watching()) is not None:
        for each in watch.members:  # they live
            if watch.far_reasons.get(each.process) == why:
                del watch.far_reasons[each.process]


class _Stopped(NamedTuple):
    """started: of a process, what tells it from an earlier one of its number. since, last: the looks that saw it so."""

    started: str
    since: float
    last: float


_stopped: dict[int, _Stopped] = {}
"""Those of this host that were stopped in each look since one, by their numbers."""


def _is_awake(member: losses.Member) -> bool:
    """Whether a process of this host is there and not stopped."""
    status = status_of(member.pid)
    if not is_stopped(status) or member.pid == os.getpid():
        _stopped.pop(member.pid, None)
        return bool(status)
    now, before = time.monotonic(), _stopped.get(member.pid)
    # After a pause nobody knows: it may have gone on, and who looks may have been stopped with it.
    known = before is not None and before.started == status[STARTED] and now - before.last < _LONGEST
    _stopped[member.pid] = _Stopped(status[STARTED], before.since if before and known else now, now)
    return False


def _stopped_for(member: losses.Member) -> float:
    """Seconds for which a process was seen so; 0.0 where it was not."""
    seen = _stopped.get(member.pid)
    return 0.0 if seen is None else seen.last - seen.since
