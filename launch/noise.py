"""mpirun's words about processes of an elastic job that are gone, of which ddp says what there is to say."""

import os
import threading
from typing import IO

_RULE = b"-" * 74 + b"\n"
_BLOCKS = (b"prterun noticed that process rank ", b"prterun has exited due to process rank ")
_LINE = b"[warn] Epoll "  # of its libevent, whose connection to a lost process is closed
_WORDS = b"LAUNCHER JOB OBJECT NOT FOUND"  # without an end of line


class Sieve:
    """Leaves them out of what mpirun and the ranks print, and holds back only what may become one of them."""

    def __init__(self) -> None:
        self._held = b""
        self._begins = True  # whether what is held is the beginning of a line

    def take(self, part: bytes) -> bytes:
        """What is to be printed, now that more has come. part: empty at the end."""
        self._held += part
        found = b""
        while self._held:
            size, shown = self._next(at_end=not part)
            if size == 0:
                break
            found += self._held[:size] if shown else b""
            if shown:
                self._begins = self._held[size - 1 : size] == b"\n"
            self._held = self._held[size:]
        return found

    def _next(self, at_end: bool) -> tuple[int, bool]:
        """How many of the bytes held are decided, and whether they are shown; none where more has to come."""
        text = self._held
        if text.startswith(_WORDS):
            return len(_WORDS), False
        waits = not at_end and _WORDS.startswith(text)
        if self._begins and text.startswith(_LINE):
            end = text.find(b"\n")
            if end >= 0:
                return end + 1, False
            waits = not at_end
        elif self._begins and _LINE.startswith(text):
            waits = not at_end
        elif self._begins and text.startswith(_RULE):
            inside = text[len(_RULE) :]
            if inside.startswith(_BLOCKS):
                end = inside.find(_RULE)
                if end >= 0:
                    return 2 * len(_RULE) + end, False
                waits = not at_end
            else:
                waits = not at_end and any(words.startswith(inside) for words in _BLOCKS)
        elif self._begins and _RULE.startswith(text):
            waits = not at_end
        if waits:
            return 0, False
        line = text.find(b"\n") + 1 or len(text)
        words = text.find(_WORDS[:1], 1, line)
        while words > 0 and not (text.startswith(_WORDS, words) or _WORDS.startswith(text[words:])):
            words = text.find(_WORDS[:1], words + 1, line)
        return (words if words > 0 else line), True


def pass_on(source: IO[bytes], target: int) -> threading.Thread:
    """Copies what comes until there is nobody who could write more; in a thread, which is returned."""

    def run() -> None:
        sieve, gone = Sieve(), False
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
