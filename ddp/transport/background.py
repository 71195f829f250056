"""Progress by a thread, for transports whose messages move on only inside MPI calls; and whether that is better here.

`poll` from the hooks of backward costs nothing where hooks are frequent. Where a backward computes for long between two
hooks, messages lie there meanwhile; a thread that polls does not, but takes the interpreter lock and a share of a core.
Which is better depends on cores, network, MPI and load, so it is measured when a transport is made.

Two ranks, a 1024 x 1024 product (17 ms) after each of four 4 MiB sums, ms in all: without progress 186, polling 156, a
thread 85, of which 69 are the products; the machine was busy otherwise.
"""

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike

from ddp import losses
from ddp.transport.base import Buffer, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

_PAUSE = 100e-6  # seconds between two looks of the thread, in which the interpreter lock is free

# The trial: so many sums of so many bytes, a product of two square matrices behind each, as backward would; so often.
_BUFFERS, _BYTES, _WIDTH, _ROUNDS = 4, 1 << 18, 512, 3
_GAIN = 0.95  # of polling's time: what the thread must do it in to be taken


class BackgroundTransport:
    """See `ddp.transport.base.Transport`: `inner`, polled by a thread of its own while buffers are in flight.

    Needs `MPI.THREAD_MULTIPLE`: other communication goes on beside the thread.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.name = inner.name
        self.rank = inner.rank
        self.size = inner.size
        self.progress = "a thread"
        self._lock = threading.Lock()
        self._wanted = threading.Event()  # something is in flight, or the thread is to end
        self._in_flight = 0
        self._ended = False
        self._error: BaseException | None = None  # that ended the thread
        self._thread = threading.Thread(target=self._run, name=f"transport {inner.name}", daemon=True)
        self._thread.start()
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
        self._wanted.set()

    def poll(self) -> None:
        """The thread does."""

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
            return BackgroundTransport(self.inner.independent())

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
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._ended:
                return
            try:
                with self._lock:
                    # Between the event and the lock the last buffer may have been waited for; `inner` is then its
                    # owner's, who uses it without the lock while the trial below runs.
                    if self._in_flight:
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


def with_better_progress(transport: Transport, comm: MPI.Intracomm) -> Transport:
    """Collective: the transport, moved on by a thread if that was faster in a trial of about 50 ms.

    What was measured is in `progress` of what is returned. Without `MPI.THREAD_MULTIPLE` there is no choice.
    """
    if not isinstance(comm, MPI.Intracomm):
        return transport  # ranks that are threads, of `ddp.testing`
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        transport.progress = "polling; this MPI gives no thread (no MPI_THREAD_MULTIPLE)"
        return transport
    buffers = [transport.allocate(_BYTES // 4, np.float32) for _ in range(_BUFFERS)]
    threaded = BackgroundTransport(transport)
    polling, thread = [], []
    for _ in range(_ROUNDS):
        polling.append(_trial(transport, buffers, comm))
        thread.append(_trial(threaded, buffers, comm))
    best = {"polling": statistics.median(polling), "a thread": statistics.median(thread)}
    chosen: Transport = threaded if best["a thread"] < _GAIN * best["polling"] else transport
    if chosen is transport:
        threaded.stop()
    figures = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in best.items())
    chosen.progress = f"{'a thread' if chosen is threaded else 'polling'} (trial: {figures})"
    return chosen


def _trial(transport: Transport, buffers: "Sequence[Buffer]", comm: MPI.Intracomm) -> float:
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
