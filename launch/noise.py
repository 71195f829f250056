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
# Where one of them may begin: what is before that is passed on at once, as a rank may print much.
_FIRST = b"".join({re.escape(noise.begins[:1]) for noise in _NOISES})
_SUSPECT = re.compile(rb"(?<=\n)[%b]|%b(?:%b|\Z)" % (_FIRST, _WORDS[:1], _WORDS[1:2]))
_ABOUT_ONE = 1024  # bytes that MPICH says of one process, in two parts
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
        text, at, found = self._held + part, 0, []
        while at < len(text):
            size, shown = self._next(text, at, at_end=not part)
            if size == 0:
                break
            if shown:
                found.append(text[at : at + size])
                self._begins = text[at + size - 1 : at + size] == b"\n"
            else:
                self._left_out = self._left_out[-_ABOUT_ONE:] + text[at : at + size]
                self._killed |= {int(pid): int(number) for pid, number in _KILLED.findall(self._left_out)}
            self._follows = not shown
            at += size
        self._held = text[at:]
        return b"".join(found)

    def _next(self, text: bytes, at: int, at_end: bool) -> tuple[int, bool]:
        """How many of the bytes from there on are decided, and whether they are shown; none where more has to come."""
        if self._follows and text.startswith(b"\0", at):  # Open MPI ends some of its words so
            return 1, False
        if text.startswith(_WORDS, at):
            return len(_WORDS), False
        waits = not at_end and _may_become(text, at, _WORDS)
        for noise in _NOISES if self._begins else ():
            if text.startswith(noise.begins, at):
                end = text.find(noise.ends, at + len(noise.begins))
                if end < 0:
                    waits = not at_end
                elif noise.has in text[at:end]:
                    return end + len(noise.ends) - at, False
            elif _may_become(text, at, noise.begins):
                waits = not at_end
        if waits:
            return 0, False
        suspect = _SUSPECT.search(text, at + 1)
        return (suspect.start() if suspect else len(text)) - at, True


def _may_become(text: bytes, at: int, words: bytes) -> bool:
    """Whether the text ends in the midst of these words, which begin there."""
    return len(text) - at < len(words) and words.startswith(text[at:])


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
