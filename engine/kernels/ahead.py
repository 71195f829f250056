"""A copy of this process that compiles, on a processor that is free, what the program will come to next.

The first step of a program compiles one kernel after another, and seconds pass on one processor. The copy shares
nothing but the disk cache with the program, where each finds what the other has compiled (`engine.kernels.store`).
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable

_LIMIT = 60  # seconds after which the copy ends, whatever it waits for
_PR_SET_PDEATHSIG = 1

_started = False


def start(work: Callable[[], None]) -> None:
    """Has a copy of this process do ``work``, once a process; nothing where no processor is left for it.

    Nothing where MPI runs, either: it does not survive a fork, and the ranks of a host share the work already.
    """
    global _started
    if _started or "mpi4py.MPI" in sys.modules or len(os.sched_getaffinity(0)) < 2:
        return
    _started = True
    program = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the copy needs none of theirs
        try:
            copy = os.fork()
        except OSError:  # no process to be had: one compiles alone
            return
    if copy:
        threading.Thread(target=_reap, args=(copy,), daemon=True, name="allstride-ahead").start()
        return
    try:
        _leave(program)
        work()
    finally:
        os._exit(0)


def _reap(copy: int) -> None:
    with contextlib.suppress(ChildProcessError):  # the program has waited for all of its children
        os.waitpid(copy, 0)


def _leave(program: int) -> None:
    """Lets go of what is the program's: its handlers, its terminal and files. Ends with it, and in any case."""
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(kind, signal.SIG_DFL)
    signal.alarm(_LIMIT)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != program:
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:
            with contextlib.suppress(OSError):  # that of the listing itself
                os.close(number)
