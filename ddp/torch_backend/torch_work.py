"""PyTorch's handle of collectives under way: `torch.distributed.Work` over those of ddp."""

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddp.execution.work import Work
from ddp.torch_backend.progress import progress
from ddp.watching.progress import begin_wait, end_wait


class TorchFuture(torch.futures.Future[Any]):
    """A future that knows whether Python is to be called back: PowerSGD's hook waits for another sum in there."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_back = False
        self.is_told = False

    def then(self, callback: "Callable[[torch.futures.Future[Any]], Any]") -> "torch.futures.Future[Any]":
        """See torch.futures.Future."""
        self._expect_call()
        return super().then(callback)

    def add_done_callback(self, callback: "Callable[[torch.futures.Future[Any]], None]") -> None:
        """The same."""
        self._expect_call()
        super().add_done_callback(callback)

    def _expect_call(self) -> None:
        with progress.lock:
            self.calls_back = True
            being_told = self.is_told
        while being_told and not self.done():  # by another thread, which is about to
            time.sleep(0)


class TorchWork(dist.Work):
    """Over when all of `works` are. results: the tensors that its future gives, as PyTorch's own backends do."""

    def __init__(self, works: Sequence[Work], results: Any) -> None:
        super().__init__()
        self._works = works
        self._results = results
        self._future: TorchFuture | None = None
        self._error: BaseException | None = None
        self._over = False
        progress.add(self)

    def look(self) -> bool:
        """See `ddp.torch_backend.progress.Pending`."""
        try:
            over = all(work.is_completed() for work in self._works)
            self._error = next((error for work in self._works if (error := work.exception()) is not None), None)
            self._over = over  # the last: others read it without the lock
        except Exception as error:  # noqa: BLE001 - whatever it is, `wait` raises it
            self._error, self._over = error, True
        return self._over

    def tell(self) -> None:
        """See `ddp.torch_backend.progress.Pending`."""
        with progress.lock:
            future = self._future
            if future is None or future.is_told:
                return
            future.is_told = True
            calls_back = future.calls_back
        if calls_back:  # what it calls may wait, and what it waits for is moved on by the thread that is here
            threading.Thread(target=self._settle, args=(future,), name="allstride calls back", daemon=True).start()
        else:
            self._settle(future)

    def _settle(self, future: TorchFuture) -> None:
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._results)

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Blocks until the result is there. Raises the error with which it ended, RuntimeError after `timeout`."""
        if not self._over:
            first = next((work for work in self._works if not work._over), None)
            if first is not None:
                assert first._channel is not None
                begin_wait(first._channel, first._number, first._label)
            try:
                seconds = timeout.total_seconds()
                if not progress.wait_until(self.is_completed, seconds if seconds > 0 else None):
                    label = self._works[0]._label
                    raise RuntimeError(f"{label}: Wait timeout: it was not complete after {timeout}")
            finally:
                if first is not None:
                    end_wait()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait`: results are in host memory."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._over

    def is_success(self) -> bool:
        """Whether it has ended without an error."""
        return self._over and self._error is None

    def exception(self) -> BaseException | None:
        """The error with which it has ended, if any."""
        return self._error

    def result(self) -> Any:
        """The tensors that hold the result."""
        return self._results

    def source_rank(self) -> int:
        """Of a message that was received: the sender's number in the group."""
        (work,) = self._works
        members = work._members  # type: ignore[attr-defined]
        return members.ranks.index(work.source_rank())

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[Any]":
        """The future of the results."""
        with progress.lock:
            if self._future is None:
                self._future = TorchFuture()
                over = self._over
            else:
                return self._future
        if over:
            self.tell()
        return self._future
