"""Ranks that are stopped while others recover from a loss: the watchdog is between two worlds then, and sees nobody.

Only a process that the kernel calls stopped counts. One that is late may be busy, and will come. On other hosts
ddprun's guards look, whenever one rank of each host asks: all ranks of a host may be stopped.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from ddp import losses
from ddp.watching.last_resort import STARTED, status_of

_PERIOD = 0.25  # seconds between looks at a process, of 10 µs each
_STOPPED = ("T", "t")  # by a signal, by a debugger


@contextlib.contextmanager
def none_stands_still(seconds: float) -> Iterator[None]:
    """Within the block, ranks that are stopped for so many seconds are killed: then they are lost, too.

    Linux only, where alone ranks may be lost.
    """
    assert sys.platform == "linux"
    over = threading.Event()
    thread = threading.Thread(target=_run, args=(seconds, over), name="ddp standstill", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _run(seconds: float, over: threading.Event) -> None:
    looks: dict[tuple[int, str], int] = {}
    questions = 0
    why = f"stopped while others recovered: no answer for {seconds:g} s"
    while not over.wait(_PERIOD):
        watch = losses.watching()
        if watch is None:
            continue
        awake = [each.pid for each in watch.members if each.is_here and _is_awake(each, looks, seconds, why)]
        if awake[:1] == [os.getpid()]:  # one of each host asks
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


def _is_awake(member: losses.Member, looks: dict[tuple[int, str], int], seconds: float, why: str) -> bool:
    """Whether a process of this host is there and not stopped. One that was stopped for so many seconds is killed.

    looks: in how many in a row each process, named by its start, was stopped. Looks, not a clock: where all are stopped
    together and go on, this thread was, too.
    """
    status = status_of(member.pid)
    if not status or member.pid == os.getpid():
        return bool(status)
    process = member.pid, status[STARTED]
    looks[process] = looks.get(process, 0) + 1 if status[0] in _STOPPED else 0
    if looks[process] * _PERIOD >= seconds:
        losses.excuse(member, why)
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGKILL)
    return not looks[process]
