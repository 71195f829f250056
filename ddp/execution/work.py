"""Work: the handle of a collective or message under way, and how it is waited for.

Whoever waits moves all collectives under way on, of all groups (`ddp.transport.under_way`): ranks may wait in different
orders.
"""

import datetime
import time
from typing import TYPE_CHECKING

import engine
from ddp.execution.futures import Future
from ddp.transport.under_way import advance_all, wait_a_little
from ddp.watching.progress import Channel, begin_wait, end_wait

if TYPE_CHECKING:
    from mpi4py import MPI

_POLL = 50e-6  # seconds between looks where a wait has a timeout of its own


class Work:
    """Something under way. It is over, well or badly, when `is_completed` says so; made by `async_op=True`."""

    def __init__(self, label: str, results: list[engine.Tensor]) -> None:
        self._label = label
        self._results = results
        self._channel: Channel | None = None  # where it is waited for, and for which meeting
        self._number = 0
        self._requests: list[MPI.Request] = []
        self._error: BaseException | None = None
        self._over = False

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        if not self._over:
            self._advance()
        return self._over

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error with which it has ended, if any."""
        return self._error

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Blocks until the result is there.

        Raises the error with which it ended; RuntimeError when `timeout` is over before, and it goes on nevertheless.
        """
        if not self._over:
            assert self._channel is not None
            begin_wait(self._channel, self._number, self._label)
            try:
                self._wait(timeout)
            finally:
                end_wait()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait`: results are in host memory."""
        self.wait()

    def result(self) -> list[engine.Tensor]:
        """The tensors that hold the result. Raises RuntimeError before it is there."""
        if not self.is_success():
            raise RuntimeError(f"{self._label}: it has no result yet; call wait()")
        return self._results

    def source_rank(self) -> int:
        """Of a message that was received: the sender's number in the world."""
        raise RuntimeError(f"{self._label}: source_rank is for messages that were received")

    def _source_rank(self) -> int:
        """The same, in the name that PyTorch's tests and old scripts use."""
        return self.source_rank()

    def get_future(self) -> "Future[list[engine.Tensor]]":
        """The future of the result, a list of tensors."""

        def compute() -> list[engine.Tensor]:
            self.wait()
            return self._results

        return Future(compute, self.is_completed)

    def _wait(self, timeout: datetime.timedelta | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self._advance()
        looks = 0
        while not self._over:
            if deadline is None:
                looks += 1
                wait_a_little(self._requests, looks)
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{self._label}: Wait timeout: it was not complete after {timeout}")
            else:
                time.sleep(_POLL)
            self._advance()

    def _advance(self) -> None:
        """Do what has become possible, for everything under way; never blocks."""
        advance_all()

    def _end(self, error: BaseException | None = None) -> None:
        self._over = True
        self._error = error
        self._requests = []
