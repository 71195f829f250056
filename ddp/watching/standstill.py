"""Ranks that are stopped while others recover from a loss: the watchdog is between two worlds then, and sees nobody.

Only a process that the kernel calls stopped counts. One that is late may be busy, and will come.
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
    """Within the block, ranks of this host that are stopped for so many seconds are killed: then they are lost, too.

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
    looks: dict[tuple[int, str], int] = {}  # in how many in a row each process, named by its start, was stopped
    while not over.wait(_PERIOD):
        watch = losses.watching()
        for member in () if watch is None else watch.members:
            status = status_of(member.pid) if member.is_here else None
            if not status or member.pid == os.getpid():
                continue
            process = member.pid, status[STARTED]
            # Looks, not a clock: where all are stopped together and go on, this thread was, too.
            looks[process] = looks.get(process, 0) + 1 if status[0] in _STOPPED else 0
            if looks[process] * _PERIOD >= seconds:
                losses.excuse(member, f"stopped while others recovered: no answer for {seconds:g} s")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
