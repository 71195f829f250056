"""Progress by a thread, for transports whose messages move on only inside MPI calls; and whether that is better here.

`poll` from the hooks of backward costs nothing where hooks are frequent. Where a backward computes for long between two
hooks, messages lie there meanwhile; a thread that polls does not, but takes the interpreter lock and a share of a core.
Which is better depends on cores, network, MPI, load, and on how long the model computes between two hooks. A trial when
a transport is made tells what to begin with; a model's first steps tell what is better for it.

Two ranks, a 1024 x 1024 product (17 ms) after each of four 4 MiB sums, ms in all: without progress 186, polling 156, a
thread 85, of which 69 are the products; the machine was busy otherwise.
"""

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from ddp import losses
from ddp.transport.base import Buffer, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpi4py import MPI

_PAUSE = 100e-6  # seconds between two looks of the thread, in which the interpreter lock is free

# The trial: so many sums of so many bytes, a product of two square matrices behind each, as backward would; so often.
_BUFFERS, _BYTES, _WIDTH, _ROUNDS = 4, 1 << 18, 512, 3
_GAIN = 0.95  # of polling's time: what the thread must do it in to be taken

# Of a model's steps: the first ones, which compile kernels and find the order of the buckets, and after them blocks of
# so many by one way and the other, in turns. The first of a block counts for none: ranks still come as the way before
# let them. In turns after each step the two take the same, though one is 15 % faster than the other.
_SKIPPED, _BLOCK, _BLOCKS = 5, 6, 4


class BackgroundTransport:
    """See `ddp.transport.base.Transport`: `inner`, moved on by a thread of its own while buffers are in flight, or, not
    `by_thread`, by its user's polls.

    Needs `MPI.THREAD_MULTIPLE`: other communication goes on beside the thread.
    """

    def __init__(self, inner: Transport, by_thread: bool = True) -> None:
        self.inner = inner
        self.name = inner.name
        self.rank = inner.rank
        self.size = inner.size
        self.by_thread = by_thread
        self.progress = way(by_thread)
        self._lock = threading.Lock()
        self._wanted = threading.Event()  # something is in flight, or the thread is to end
        self._in_flight = 0
        self._ended = False
        self._error: BaseException | None = None  # that ended the thread
        self._thread: threading.Thread | None = None
        if by_thread:
            self._begin()
        if (watch := losses.watching()) is not None:
            watch.interrupted.add(self)

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> Buffer:
        with self._lock:
            return self.inner.allocate(count, dtype, header, shards)

    def start(self, buffer: Any, divisor: float | None = 1.0) -> None:
        with self._lock:
            self._tell()
            self.inner.start(buffer, divisor)
            self._in_flight += 1
        if self.by_thread:
            self._wanted.set()

    def poll(self) -> None:
        """The thread does, if there is one."""
        if not self.by_thread:
            self.inner.poll()

    def wait(self, buffer: Any) -> None:
        with self._lock:
            self._tell()
            self.inner.wait(buffer)
            self._in_flight -= 1
            if not self._in_flight:
                self._wanted.clear()

    def is_done(self, buffer: Any) -> bool:
        return self.inner.is_done(buffer)

    def independent(self) -> Transport:
        with self._lock:
            return BackgroundTransport(self.inner.independent(), self.by_thread)

    def change(self) -> bool:
        """Goes over to the other way, unless something is in flight; whether it did."""
        if self._in_flight:
            return False
        self.by_thread = not self.by_thread
        if self.by_thread and self._thread is None:
            self._begin()
        return True

    def interrupt(self, cause: str) -> None:
        """From another thread: a rank is lost, which MPI tells whoever waits. Nothing is left for the thread here."""
        self._ended = True
        self._wanted.set()

    def close(self) -> None:
        self.stop()
        self.inner.close()

    def stop(self) -> None:
        """End the thread; `inner` can be used without it."""
        self._ended = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"transport {self.inner.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._ended:
                return
            try:
                with self._lock:
                    # Between the event and the lock the last buffer may have been waited for, and the way changed;
                    # `inner` is then its user's, who polls it without the lock.
                    if self._in_flight and self.by_thread:
                        self.inner.poll()
            except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
                self._error = error
                return
            time.sleep(_PAUSE)

    def _tell(self) -> None:
        """Raises what ended the thread, once; `inner` refuses what comes after."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class FirstSteps:
    """Chooses the way that is better for a model: its first steps go by each of them in turns.

    `ended` is to be called when the sums of a step are there. What a step takes depends on when the others come, so
    ranks see the same, and need not agree.
    """

    def __init__(self, transport: BackgroundTransport) -> None:
        self._transport = transport
        self._steps, self._before = -_SKIPPED, 0.0
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self.settled = False

    def ended(self, now: float) -> None:
        """A step's sums are there."""
        transport, seconds = self._transport, now - self._before
        self._before = now
        self._steps += 1
        if self._steps <= 0:
            return
        if self._steps % _BLOCK != 1:
            self._seconds[transport.by_thread].append(seconds)
        if self._steps == _BLOCK * _BLOCKS:
            polling, thread = (statistics.median(self._seconds[by_thread]) for by_thread in (False, True))
            if transport.by_thread != (thread < polling) and not transport.change():
                self._steps -= 1
                return
            transport.progress = f"{way(transport.by_thread)} (first steps: {_told(polling, thread)})"
            self.settled = True
        elif self._steps % _BLOCK == 0 and not transport.change():
            self._steps -= 1  # something is in flight: the block goes on


def way(by_thread: bool) -> str:
    """What moves a transport on, in words."""
    return "a thread" if by_thread else "polling"


def with_better_progress(transport: Transport, comm: "MPI.Intracomm") -> Transport:
    """Collective: the transport, moved on by a thread or by polling, by what was faster in a trial of about 50 ms.

    What was measured is in `progress` of what is returned. Without `MPI.THREAD_MULTIPLE` there is no choice.
    """
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm):
        return transport  # ranks that are threads, of `ddp.testing`
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        transport.progress = "polling; this MPI gives no thread (no MPI_THREAD_MULTIPLE)"
        return transport
    buffers = [transport.allocate(_BYTES // 4, np.float32) for _ in range(_BUFFERS)]
    chosen = BackgroundTransport(transport, by_thread=False)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS):
        for each in seconds.values():
            each.append(_trial(chosen, buffers, comm))
            chosen.change()
    polling, thread = (statistics.median(seconds[by_thread]) for by_thread in (False, True))
    if thread < _GAIN * polling:
        chosen.change()
    chosen.progress = f"{way(chosen.by_thread)} (trial: {_told(polling, thread)})"
    return chosen


def _told(polling: float, thread: float) -> str:
    return f"polling {polling * 1e3:.1f} ms, a thread {thread * 1e3:.1f} ms"


def _trial(transport: Transport, buffers: "Sequence[Buffer]", comm: "MPI.Intracomm") -> float:
    """Collective: seconds, of the slowest rank."""
    matrix = np.ones((_WIDTH, _WIDTH), np.float32)
    comm.Barrier()
    began = time.perf_counter()
    for buffer in buffers:
        transport.start(buffer)
        np.matmul(matrix, matrix)
        transport.poll()
    for buffer in buffers:
        transport.wait(buffer)
    return max(comm.allgather(time.perf_counter() - began))
