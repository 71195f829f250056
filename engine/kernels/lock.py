"""What kernels on several threads know of the interpreter's lock, which they let go of while they run.

Two words of memory that `engine.kernels.wrapper` reads and writes: whether a thread that has come out of a kernel has
the lock, and how often another that wants it looks whether it is free before it asks for it. On lines of their own: one
is written by every call.
"""

import numpy as np

SYMBOL = "allstride_lock_words"
LOOKS = 128  # bytes from the one to the other
words = np.zeros(2 * LOOKS // 8, np.int64)


def look_for_lock(looks: int) -> None:
    """How often kernels look whether the interpreter's lock is free, at the end of each call, before they ask for it:
    who has to wait for it sleeps, and is woken by a call of the system. 0, as it begins: not at all.
    """
    words[LOOKS // 8] = looks
