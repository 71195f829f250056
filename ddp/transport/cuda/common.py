"""What the transports of device memory share: the rules for streams, and the life of a buffer.

To the rules of `ddp.transport.base` they add:

* `array` is device memory; `header` is host memory, as ever. `allocate` makes it on the device that the transport was
  made for.
* `start` returns at once, on the host and on the device: the sum comes after everything that was queued before on the
  streams that `streams` names (the Reducer notes those that wrote gradients), or on the current one.
* `wait` blocks the host until every rank has queued its part and the header is there, never until the device is through
  with it (but `staged` and `gpu_mpi`, whose messages the host has to see off). What is queued on the current stream
  after it comes after the sum.
* `is_done` says whether neither the host nor a stream would wait.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ddp.transport import headers
from ddp.transport.base import accumulator_dtype, closed
from ddp.transport.pausing import pause
from ddp.transport.shards import Shards
from ddp.transport.summing import check_divisor
from engine import device
from engine.cuda.streams import has_passed, of_raw, stream
from engine.memory.backend import require_cupy

IDLE, UNDER_WAY, DONE = range(3)


class CudaBuffer:
    """Device memory; see `ddp.transport.base.Buffer`. What a transport has to remember of a buffer is in `work`."""

    __slots__ = ("array", "divisor", "done", "header", "ready", "shards", "stage", "streams", "work")

    def __init__(self, array: Any, header: NDArray[np.float64]) -> None:
        cuda = require_cupy().cuda
        self.array = array
        self.header = header
        self.shards: Shards | None = None
        self.streams: dict[int, Any] = {}  # by pointer: those whose work fills the array
        self.ready = cuda.Event(disable_timing=True)  # of one of them
        self.done = cuda.Event(disable_timing=True)  # the sum is there
        self.divisor: float | None = 1.0
        self.stage = IDLE
        self.work: Any = None


class CudaTransport(ABC):
    """See `ddp.transport.base.Transport` and the module."""

    name: str
    progress = "polling"

    def __init__(self, where: device, rank: int, size: int) -> None:
        cuda = require_cupy().cuda
        self.rank = rank
        self.size = size
        self.device = where
        self._on_device = cuda.Device(where.index)
        with self._on_device:
            self._stream = cuda.Stream(non_blocking=True)
        self._in_flight: list[CudaBuffer] = []  # in the order of start
        self._closed = False

    # --- what a transport has to say ----------------------------------------------------------------------------------

    @abstractmethod
    def _allocate(self, count: int, dtype: np.dtype[Any], header: int) -> CudaBuffer:
        """As `allocate`, with the device current."""

    @abstractmethod
    def _begin(self, buffer: CudaBuffer) -> None:
        """This rank has filled the buffer; `_stream` waits for that already."""

    @abstractmethod
    def _advance(self, buffer: CudaBuffer) -> bool:
        """Do what has become possible, without blocking. True when `buffer.done` is queued and the header is there."""

    @abstractmethod
    def independent(self) -> "CudaTransport":
        """See `ddp.transport.base.Transport`."""

    @abstractmethod
    def _leave(self) -> None:
        """As `close`, with nothing in flight."""

    # --- the life of a buffer -----------------------------------------------------------------------------------------

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> CudaBuffer:
        if shards is not None:
            raise NotImplementedError(f"transport {self.name}: shards are summed in host memory only")
        accumulator_dtype(dtype)
        with self._on_device:
            return self._allocate(count, np.dtype(dtype), header)

    def start(self, buffer: Any, divisor: float | None = 1.0) -> None:
        if self._closed:
            raise closed(self.name)
        if buffer.stage != IDLE:
            raise RuntimeError(f"transport {self.name}: the buffer was started twice; wait for it first")
        check_divisor(buffer.array.dtype, divisor)
        buffer.divisor = divisor
        buffer.stage = UNDER_WAY
        with self._on_device:
            if buffer.array.size:
                for stream in buffer.streams.values() or (self._current(),):
                    buffer.ready.record(stream)
                    self._stream.wait_event(buffer.ready)
                buffer.streams.clear()
            self._in_flight.append(buffer)
            self._begin(buffer)
        self.poll()

    def poll(self) -> None:
        if self._in_flight:
            with self._on_device:
                self._poll()

    def _poll(self) -> None:
        for buffer in tuple(self._in_flight):
            if self._advance(buffer):
                buffer.stage = DONE
                self._in_flight.remove(buffer)

    def wait(self, buffer: Any) -> None:
        if buffer.stage == IDLE:
            raise RuntimeError(f"transport {self.name}: wait for a buffer that was not started")
        looks = 0
        while buffer.stage != DONE:
            pause(looks)
            looks += 1
            self.poll()  # every buffer: another rank may wait for my part of one that I do not wait for yet
        if buffer.array.size:
            with self._on_device:
                self._current().wait_event(buffer.done)
        buffer.stage = IDLE

    def is_done(self, buffer: Any) -> bool:
        return buffer.stage == DONE and (not buffer.array.size or has_passed(buffer.done))

    def close(self) -> None:
        self._closed = True
        if not self._in_flight:
            with self._on_device:
                self._leave()

    def current_device(self) -> Any:
        """Context manager: this transport's GPU is the one in use."""
        return require_cupy().cuda.Device(self.device.index)

    def _tell_weight(self, buffer: CudaBuffer, header: NDArray[np.float64]) -> None:
        """This rank's weight among those of all, the last entries of a header that is summed over the ranks."""
        told = header[-self.size :]
        told[:] = 0
        told[self.rank] = headers.weights([buffer.header])[0] if buffer.header.size else 1

    def _on_stream(self) -> Any:
        """Context manager: `_stream` is the current one. CuPy's own would not come back to a stream set by `use`."""
        return stream(of_raw(self._stream, self._on_device.id))

    def _current(self) -> Any:
        return require_cupy().cuda.get_current_stream(self.device.index)


class LoopbackCudaTransport(CudaTransport):
    """The transport of a world of one: the sum of one rank is the rank's own array."""

    name = "loopback"
    progress = "nothing to move"

    def __init__(self, where: device) -> None:
        super().__init__(where, 0, 1)

    def _allocate(self, count: int, dtype: np.dtype[Any], header: int) -> CudaBuffer:
        return CudaBuffer(device_zeros(count, dtype), np.zeros(header))

    def _begin(self, buffer: CudaBuffer) -> None:
        mean = 1.0 if buffer.divisor is None else buffer.divisor
        if not buffer.array.size or mean == 1:
            buffer.done.record(self._stream)
            return
        from ddp.transport.cuda.summing import SliceSum

        buffer.work = buffer.work or SliceSum([buffer.array], [buffer.array])
        with self._on_stream():
            buffer.work.run(mean, None)
        buffer.done.record(self._stream)

    def _advance(self, buffer: CudaBuffer) -> bool:
        return True

    def independent(self) -> "LoopbackCudaTransport":
        return self

    def _leave(self) -> None:
        """There is nothing to give back."""


def device_zeros(count: int, dtype: DTypeLike) -> Any:
    """Zeros of shape (count,) on the current device that start on a cache line, as all of CuPy's memory does."""
    return require_cupy().zeros(count, dtype)


def laid_out(memory: Any, count: int, dtype: np.dtype[Any]) -> Any:
    """`count` elements at the start of a CuPy memory."""
    cupy = require_cupy()
    return cupy.ndarray((count,), dtype, cupy.cuda.MemoryPointer(memory, 0))
