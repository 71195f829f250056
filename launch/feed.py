"""Passes standard input on to rank 0, and its end: mpirun's own way knows none (Open MPI 5.0.11)."""

import os
from collections.abc import Callable

from launch.events import Events

_PIECE = 1 << 16


class Feed:
    """What is read from standard input goes to one descriptor as fast as rank 0 takes it."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._data = b""
        self._sink: int | None = None
        self._close: Callable[[], None] = lambda: None
        self._waiting_for_terminal = False

    def start(self, sink: int, close: Callable[[], None]) -> None:
        """Feeds `sink`, a descriptor that does not block, and calls `close` when nothing more will come."""
        self._sink, self._close = sink, close
        self._read_next()

    def look(self) -> None:
        """To be called now and then: whether a job in the background has come to the foreground."""
        if self._waiting_for_terminal and _may_read():
            self._read_next()

    def _read_next(self) -> None:
        self._waiting_for_terminal = not _may_read()  # to try would stop this process
        if not self._waiting_for_terminal:
            self._events.add(0, self._read)

    def _read(self) -> None:
        if not _may_read():
            self._events.remove(0)
            self._waiting_for_terminal = True
            return
        try:
            self._data = os.read(0, _PIECE)
        except BlockingIOError:  # somebody has set it so
            return
        except OSError:  # a folder, or a terminal that was closed
            self._data = b""
        self._events.remove(0)
        if self._data:
            assert self._sink is not None
            self._events.add(self._sink, self._write, to_write=True)
        else:
            self._end()

    def _write(self) -> None:
        assert self._sink is not None
        try:
            self._data = self._data[os.write(self._sink, self._data) :]
        except BlockingIOError:
            return
        except OSError:  # rank 0 has ended, or reads no more
            self._events.remove(self._sink)
            self._end()
            return
        if not self._data:
            self._events.remove(self._sink)
            self._read_next()

    def _end(self) -> None:
        self._sink = None
        self._close()


def _may_read() -> bool:
    """Whether reading standard input would not stop this process: a terminal serves its foreground only."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # no terminal, or none any more
        return True
