"""Waits for whatever comes first: a signal, a word of a rank, standard input."""

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Collection, Iterator

_ROUNDS = 2  # a connection is taken in one, what came by it is read in the next


class Events:
    """Functions that are called when there is something to read at a descriptor, or room to write.

    In the order in which that came about, however late this process gets to it: of ranks that have ended the first is
    the first.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._files: set[int] = set()  # for which epoll has no use: they are always ready
        self._react: dict[int, Callable[[], None]] = {}
        self._last: set[int] = set()

    def add(self, descriptor: int, react: Callable[[], None], *, to_write: bool = False, last: bool = False) -> None:
        """Calls `react` again and again while the descriptor is ready. last: after what was there at the same time."""
        self._react[descriptor] = react
        if last:
            self._last.add(descriptor)
        try:
            self._poll.register(descriptor, select.EPOLLOUT if to_write else select.EPOLLIN)
        except PermissionError:
            self._files.add(descriptor)

    def remove(self, descriptor: int) -> None:
        """Forgets a descriptor; before it is closed."""
        if self._react.pop(descriptor, None) is not None:
            if descriptor not in self._files:
                self._poll.unregister(descriptor)
            self._files.discard(descriptor)
            self._last.discard(descriptor)

    def wait(self, seconds: float) -> None:
        """Returns after at most so many seconds, sooner if something has come."""
        if last := self._call_ready(max(0.0, seconds)):
            for _ in range(_ROUNDS):
                self._call_ready(0.0)
            for react in last:
                react()

    def _call_ready(self, seconds: float) -> list[Callable[[], None]]:
        """Waits for what is ready, and calls it, but for those that are to be last."""
        last = []
        ready = [descriptor for descriptor, _ in self._poll.poll(0.0 if self._files else seconds)]
        for descriptor in [*ready, *self._files]:
            if react := self._react.get(descriptor):  # one may have removed the next
                if descriptor in self._last:
                    last.append(react)
                else:
                    react()
        return last


@contextlib.contextmanager
def signals(events: Events, numbers: Collection[int], react: Callable[[int], None]) -> Iterator[None]:
    """Within the block, signals wait until `events` come to them, in their order, and do not interrupt anything.

    What ranks said before comes before, however late this process gets to it: a signal is for the ranks that are known.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)

    def fetch() -> None:
        for number in ours.recv(4096):
            if number in numbers:
                react(number)

    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    wakeup = signal.set_wakeup_fd(theirs.fileno())
    events.add(ours.fileno(), fetch, last=True)
    try:
        yield
    finally:
        events.remove(ours.fileno())
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        ours.close()
        theirs.close()


def is_open(descriptor: int) -> bool:
    """Whether this process has such a descriptor at all."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
