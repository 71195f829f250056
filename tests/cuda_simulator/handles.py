"""`cupy.cuda.Device`, `Event` and `Stream`: what programs hold of devices, events and streams."""

import weakref
from collections.abc import Callable
from typing import Any

from tests.cuda_simulator import races, streams
from tests.cuda_simulator.errors import CUDARuntimeError


class Device:
    """`cupy.cuda.Device`: an index, the calls on it, and the current device inside `with`."""

    def __init__(self, device: "int | Device | None" = None) -> None:
        self.id = streams.current_device() if device is None else int(device)
        self._before: list[int] = []

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> "Device":
        self._before.append(streams.current_device())
        streams.set_device(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        streams.set_device(self._before.pop())

    def use(self) -> None:
        streams.set_device(self.id)

    def synchronize(self) -> None:
        if not 0 <= self.id < streams.device_count():
            raise CUDARuntimeError("cudaErrorInvalidDevice")
        streams.synchronize_device(self.id)

    @property
    def compute_capability(self) -> str:
        return "90"

    @property
    def attributes(self) -> dict[str, int]:
        from tests.cuda_simulator import runtime

        return dict(runtime.ATTRIBUTES_BY_NAME)

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id + 1:02X}:00.0"

    @property
    def cublas_handle(self) -> int:
        return 0xC0B1A500 + self.id


class Event:
    """`cupy.cuda.Event`."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self.ptr = 0
        self.ptr = streams.create_moment(
            (1 if block else 0) | (2 if disable_timing else 0) | (4 if interprocess else 0)
        )
        weakref.finalize(self, streams.destroy_moment, self.ptr).atexit = False

    @property
    def done(self) -> bool:
        return streams.query_moment(streams.moment_of(self.ptr))

    def record(self, stream: "Stream | ExternalStream | None" = None) -> None:
        streams.record(streams.moment_of(self.ptr), streams.current_queue() if stream is None else stream._queue())

    def synchronize(self) -> None:
        streams.synchronize_moment(streams.moment_of(self.ptr))


class _Base:
    """What Stream and ExternalStream share."""

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def _queue(self) -> streams.Queue:
        """The driver's stream; the null stream is the current device's."""
        return streams.queue_of(self.ptr, self.device_id if self.device_id >= 0 else None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Base) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __enter__(self) -> Any:
        device = streams.current_device()
        self._check_device(device)
        streams.entered(device).append(self)
        streams.devices_entered().append(device)
        streams.set_current(device, self)
        return self

    def __exit__(self, *_: object) -> None:
        """As CuPy's: what the last `with` around this one made current, whatever `use` did since."""
        stack = streams.entered(streams.devices_entered().pop())
        stack.pop()
        before = stack[-1] if stack else Stream.null
        streams.set_current(before.device_id if before.device_id >= 0 else streams.current_device(), before)

    def use(self) -> Any:
        device = streams.current_device()
        self._check_device(device)
        streams.set_current(device, self)
        return self

    def _check_device(self, device: int) -> None:
        if self.device_id not in (-1, device):
            raise RuntimeError(
                f"This stream was not created on the current device (stream: {self.device_id}, current: {device})"
            )

    @property
    def done(self) -> bool:
        queue = self._queue()
        if queue.capture is not None:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
        if races.reached(races.HOST, queue.clock):
            return True
        if queue.asked != queue.clock:
            queue.asked = dict(queue.clock)
            return False
        streams.host_waits(queue.clock)
        return True

    @property
    def priority(self) -> int:
        return self._queue().priority

    def synchronize(self) -> None:
        streams.synchronize_queue(self._queue())

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)  # type: ignore[arg-type]
        return event

    def wait_event(self, event: Event) -> None:
        streams.wait(self._queue(), streams.moment_of(event.ptr))

    def launch_host_func(self, callback: Callable[[Any], None], arg: Any) -> None:
        from tests.cuda_simulator import execution

        execution.host_function(self._queue(), lambda: callback(arg))

    def begin_capture(self, mode: int | None = None) -> None:
        from tests.cuda_simulator import graphs

        graphs.begin(self._queue(), graphs.RELAXED if mode is None else mode)

    def end_capture(self) -> Any:
        from tests.cuda_simulator import graphs

        return graphs.end(self._queue())

    def is_capturing(self) -> bool:
        return self._queue().capture is not None


class Stream(_Base):
    """`cupy.cuda.Stream`: a new stream of the current device, the null stream or the thread's (ptds=True)."""

    null: "Stream"
    ptds: "Stream"

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if null:
            super().__init__(0, -1)
        elif ptds:
            super().__init__(streams.PER_THREAD, -1)
        else:
            super().__init__(streams.create_queue(1 if non_blocking else 0, priority or 0), streams.current_device())
            weakref.finalize(self, streams.destroy_queue, self.ptr).atexit = False

    @classmethod
    def from_external(cls, obj: Any) -> "ExternalStream":
        _, handle = obj.__cuda_stream__()
        return ExternalStream(handle)


class ExternalStream(_Base):
    """`cupy.cuda.ExternalStream`: a stream that somebody else made."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(int(ptr), device_id)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


def get_current_stream(device_id: int = -1) -> Any:
    """The stream on which this thread queues its work for a device (default: the current one)."""
    device = streams.current_device() if device_id < 0 else device_id
    found = streams.current(device)
    return Stream.null if found is None else found


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds between two events. Raises CUDARuntimeError unless both were recorded, are done, and keep times."""
    first, last = streams.moment_of(start_event.ptr), streams.moment_of(end_event.ptr)
    if first.flags & 2 or last.flags & 2 or first.clock is None or last.clock is None:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    for moment in (first, last):
        if not races.reached(races.HOST, moment.clock or {}):
            raise CUDARuntimeError("cudaErrorNotReady")
    return max(0.0, (last.time - first.time) * 1e3)
