"""Open MPI's words about each call that a loss has ended, which say nothing to a user: the loss is told by others."""

import ctypes
import os
import re
import sys
import threading

_UNBUFFERED = 2
_NOISE = re.compile(
    rb"NBC_Progress: an error"  # of nonblocking collectives
    rb"|\[\S+\] OPAL ERROR: Server not available in file \S*/dpm\.c"  # of MPI_Comm_accept
)


def filter_noise() -> None:
    """What C libraries print to their `stderr` goes through a thread from now on, which leaves those lines out.

    Python's own standard error, and words about crashes, go past it. Linux only: there `stderr` is a variable.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    library.fdopen.restype = ctypes.c_void_p
    reading, writing = os.pipe()
    stream = ctypes.c_void_p(library.fdopen(writing, b"w"))
    library.setvbuf(stream, None, _UNBUFFERED, 0)
    ctypes.c_void_p.in_dll(library, "stderr").value = stream.value
    threading.Thread(target=_pass_on, args=(reading,), name="ddp noise", daemon=True).start()


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if line.strip() and not _NOISE.match(line):
                os.write(2, line)
