"""mpirun's words about processes that are gone, where ddprun or ddp says what there is to say."""

import os
import re
import threading
from typing import IO, NamedTuple


class Noise(NamedTuple):
    """What is left out: from the beginning of a line that begins so, to the first such end after that."""

    begins: bytes
    ends: bytes
    has: bytes = b""
    """Only with this in it."""


_DASHES = b"-" * 74 + b"\n"
_EQUALS = b"=" * 83 + b"\n"
_NOISES = (
    *(
        Noise(_DASHES + words, _DASHES)
        for program in (b"prterun", b"mpirun")  # of Open MPI 5, and 4
        for words in (
            program + b" noticed that process rank ",
            program + b" has exited due to process rank ",
            program + b" detected that one or more processes exited with non-zero status",
        )
    ),
    Noise(_DASHES + b"PRTE has lost communication with a remote daemon.", _DASHES),
    Noise(_DASHES + b"MPI_ABORT was invoked on rank ", _DASHES),
    Noise(_DASHES + b"Primary job  terminated normally, but ", _DASHES),  # of Open MPI 4
    Noise(b"[warn] Epoll ", b"\n"),  # of its libevent, whose connection to a lost process is closed
    # MPICH and Intel MPI.
    Noise(b"\n" + _EQUALS + b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n", _EQUALS),
    Noise(
        b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ", b"Please see the FAQ page for debugging suggestions\n"
    ),
    Noise(b"Abort(", b"\n", has=b": application called MPI_Abort("),
)
_WORDS = b"LAUNCHER JOB OBJECT NOT FOUND"  # of Open MPI, without an end of line
_KILLED = re.compile(rb"PID (\d+) (?:(?!PID ).)*?signal:? (\d+)", re.IGNORECASE | re.DOTALL)


class Sieve:
    """Leaves them out of what mpirun and the ranks print, and holds back only what may become one of them.

    killed: takes the processes of which mpirun says that they were, each with the number of the signal.
    """

    def __init__(self, killed: dict[int, int]) -> None:
        self._killed = killed
        self._held = b""
        self._begins = True  # whether what is held is the beginning of a line
        self._left_out = b""
        self._follows = False  # whether what comes follows something that was left out

    def take(self, part: bytes) -> bytes:
        """What is to be printed, now that more has come. part: empty at the end."""
        self._held += part
        found = b""
        while self._held:
            size, shown = self._next(at_end=not part)
            if size == 0:
                break
            if shown:
                found += self._held[:size]
                self._begins = self._held[size - 1 : size] == b"\n"
            else:
                self._left_out += self._held[:size]
                self._killed |= {int(pid): int(number) for pid, number in _KILLED.findall(self._left_out)}
            self._follows = not shown
            self._held = self._held[size:]
        return found

    def _next(self, at_end: bool) -> tuple[int, bool]:
        """How many of the bytes held are decided, and whether they are shown; none where more has to come."""
        text = self._held
        if self._follows and text.startswith(b"\0"):  # Open MPI ends some of its words so
            return 1, False
        if text.startswith(_WORDS):
            return len(_WORDS), False
        waits = not at_end and _WORDS.startswith(text)
        for noise in _NOISES if self._begins else ():
            if text.startswith(noise.begins):
                end = text.find(noise.ends, len(noise.begins))
                if end < 0:
                    waits = not at_end
                elif noise.has in text[:end]:
                    return end + len(noise.ends), False
            elif noise.begins.startswith(text):
                waits = not at_end
        if waits:
            return 0, False
        line = text.find(b"\n") + 1 or len(text)
        words = text.find(_WORDS[:1], 1, line)
        while words > 0 and not (text.startswith(_WORDS, words) or _WORDS.startswith(text[words:])):
            words = text.find(_WORDS[:1], words + 1, line)
        return (words if words > 0 else line), True


def pass_on(source: IO[bytes], target: int, killed: dict[int, int]) -> threading.Thread:
    """Copies what comes until there is nobody who could write more; in a thread, which is returned.

    killed: see `Sieve`.
    """

    def run() -> None:
        sieve, gone = Sieve(killed), False
        while True:
            part = os.read(source.fileno(), 1 << 16)
            data = sieve.take(part)
            while data and not gone:
                try:
                    data = data[os.write(target, data) :]
                except OSError:  # the terminal was closed; mpirun is to end in its own way all the same
                    gone = True
            if not part:
                return

    thread = threading.Thread(target=run, name="ddprun noise", daemon=True)
    thread.start()
    return thread
