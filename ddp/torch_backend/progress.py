"""What moves PyTorch's collectives on: a thread, since its C++ waits for futures without asking anybody.

Whoever waits in Python looks by itself, and the thread keeps still meanwhile. All that this package does for PyTorch
happens under one lock: a transport and its bookkeeping are for one thread at a time.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

# Seconds between looks of the thread, which takes the interpreter lock and its rank's core for each: the first while
# something moves, up to the second while another rank is waited for. With the first alone, waiting took 16 % of a core.
_PAUSE, _LONGEST_PAUSE = 50e-6, 200e-6
_SPINS = 2000  # looks of a waiting rank before it lets others run; none where ranks outnumber cores
_YIELDS = 20_000


class Pending(Protocol):
    """Something under way."""

    def look(self) -> bool:
        """Whether it is over. Called under the lock."""
        ...

    def tell(self) -> None:
        """It is over: called once, without the lock, since what is told may begin something new."""
        ...


class Progress:
    """See the module."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pending: list[Pending] = []
        self._waiters = 0
        self.moved = False
        """Whether a look found more than that it has to wait: whoever did something says so."""
        self._wanted = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None
        # Asked once: it takes 10 µs, and a sum of 64 KiB looks four times.
        self._crowded = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > (os.cpu_count() or 1)

    def add(self, pending: Pending) -> None:
        """It is looked at from now on."""
        with self.lock:
            self._pending.append(pending)
            self.moved = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="allstride for torch", daemon=True)
            self._thread.start()
            atexit.register(self._end)
        self._wanted.set()

    def advance(self) -> None:
        """One look at everything under way; never blocks on other ranks."""
        with self.lock:
            over = [pending for pending in self._pending if pending.look()]
            if over:
                self.moved = True
                self._pending = [pending for pending in self._pending if pending not in over]
            if not self._pending:
                self._wanted.clear()
        for pending in over:
            pending.tell()

    def wait_until(self, over: Callable[[], bool], timeout: float | None) -> bool:
        """Looks until `over` says so; False where `timeout`, in seconds, ends before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        looks = 0
        with self._waiting():
            while not over():
                self.advance()
                if deadline is not None and time.monotonic() > deadline:
                    return over()
                looks += 1
                if looks > _SPINS + _YIELDS:
                    time.sleep(_PAUSE)
                elif looks > _SPINS or self._crowded:
                    os.sched_yield()
        return True

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    def _run(self) -> None:
        pause = _PAUSE
        while not self._ended:
            self._wanted.wait()
            if not self._waiters:
                self.advance()
            moved, self.moved = self.moved, False
            pause = _PAUSE if moved else min(2 * pause, _LONGEST_PAUSE)
            time.sleep(pause)

    def _end(self) -> None:
        self._ended = True
        self._wanted.set()
        assert self._thread is not None
        self._thread.join()


progress = Progress()
