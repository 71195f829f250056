"""Open MPI's words about each nonblocking collective that a loss has ended, which say nothing to a user."""

import ctypes
import os
import sys
import threading

_UNBUFFERED = 2


def filter_libnbc() -> None:
    """What C libraries print to their `stderr` goes through a thread from now on, which leaves out those lines.

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
            if line.strip() and not line.startswith(b"NBC_Progress: an error"):
                os.write(2, line)
