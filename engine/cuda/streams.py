"""Streams and events. Work on one stream runs in order; an event orders work on different ones.

A Stream here is a device and a stream of CuPy's. Which one is current is CuPy's own state, one a thread and device, so
that CuPy code between ours follows it.
"""

import threading
from typing import Any

from engine.cuda.devices import current_device, index_of, is_available
from engine.cuda.devices import device as _on
from engine.memory import backend
from engine.rules.device import device


class Stream:
    """A queue of work of one GPU. `with stream:` makes it current; see also `engine.cuda.stream`.

    It does not wait for the default stream, nor the default stream for it. Args: device: the GPU (the one in use);
    priority: lower numbers run first where the GPU has to choose (0 or -1).

    side = engine.cuda.Stream()
    side.wait_stream(engine.cuda.current_stream())
    with engine.cuda.stream(side):
        y = x @ x
    engine.cuda.current_stream().wait_stream(side)
    y.record_stream(engine.cuda.current_stream())
    """

    __slots__ = ("__weakref__", "_entered", "device_index", "raw")

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        self._entered: list[Any] = []
        if given:
            raise TypeError(f"Stream: unknown argument {next(iter(given))!r}; one made elsewhere is an ExternalStream")
        self.device_index = index_of(device)
        with _on(self.device_index):
            self.raw = self._create(priority)

    def _create(self, priority: int) -> Any:
        cuda = backend.require_cupy().cuda
        if priority == 0:
            return cuda.Stream(non_blocking=True)
        return cuda.Stream(non_blocking=True, priority=priority)

    @property
    def device(self) -> device:
        """The GPU whose work this is."""
        return device("cuda", self.device_index)

    @property
    def cuda_stream(self) -> int:
        """The cudaStream_t, as an integer."""
        return int(self.raw.ptr)

    @property
    def priority(self) -> int:
        """The priority; lower numbers run first."""
        return int(self.raw.priority)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)

    def wait_event(self, event: "Event") -> None:
        """Work that is given to this stream from now on waits for the event."""
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        """Work that is given to this stream from now on waits for all that the other one has now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Records an event (a new one by default) after all work this stream has now; returns it."""
        if event is None:
            event = Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done."""
        return bool(self.raw.done)

    def synchronize(self) -> None:
        """Waits until all work is done."""
        self.raw.synchronize()

    def __enter__(self) -> "Stream":
        context = stream(self)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().__exit__(None, None, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return (self.device_index, self.cuda_stream) == (other.device_index, other.cuda_stream)

    def __hash__(self) -> int:
        return hash((self.device_index, self.cuda_stream))

    def __repr__(self) -> str:
        return f"<engine.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


def of_raw(raw: Any, index: int) -> Stream:
    """A stream of CuPy's on the GPU `index`, as a Stream."""
    made = object.__new__(Stream)
    made.raw, made.device_index, made._entered = raw, index, []
    return made


class _Foreign:
    """What CuPy asks for the address of a stream that it did not make."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.pointer)


class ExternalStream(Stream):
    """A stream that another library made and will destroy: `ExternalStream(pointer, device)`."""

    __slots__ = ()

    def __init__(self, stream_ptr: int, device: Any = None) -> None:
        self._entered = []
        self.device_index = index_of(device)
        with _on(self.device_index):
            self.raw = backend.require_cupy().cuda.Stream.from_external(_Foreign(int(stream_ptr)))


_chosen = threading.local()  # keeps what `set_stream` made current: CuPy need not


def current_stream(device: Any = None) -> Stream:
    """The stream that work on a GPU goes to on this thread."""
    index = index_of(device)
    return of_raw(backend.require_cupy().cuda.get_current_stream(index), index)


def default_stream(device: Any = None) -> Stream:
    """The stream that is current when no other was chosen."""
    return of_raw(backend.require_cupy().cuda.Stream.null, index_of(device))


def set_stream(stream: Stream | None) -> None:
    """Makes a stream current, and its GPU the one in use; nothing for None. `stream` as a context is the better way."""
    if stream is not None:
        backend.require_cupy().cuda.runtime.setDevice(stream.device_index)
        stream.raw.use()
        _chosen.__dict__[str(stream.device_index)] = stream


class stream:
    """Context manager: work of this thread goes to `stream`, and its GPU is the one in use. None: nothing changes."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._before: list[tuple[int, Any]] = []

    def __enter__(self) -> Stream | None:
        if self.stream is not None:
            cuda = backend.require_cupy().cuda
            index = self.stream.device_index
            self._before.append((cuda.runtime.getDevice(), cuda.get_current_stream(index)))
            if self._before[-1][0] != index:
                cuda.runtime.setDevice(index)
            self.stream.raw.__enter__()  # CuPy's own `with` inside comes back to what was entered, not to what is used
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            runtime = backend.require_cupy().cuda.runtime
            index, raw = self._before.pop()
            runtime.setDevice(self.stream.device_index)  # it may have been changed inside
            self.stream.raw.__exit__(None, None, None)
            raw.use()
            if index != self.stream.device_index:
                runtime.setDevice(index)


StreamContext = stream


class Event:
    """A point in the work of a stream. It is made on the device of the stream that first records it.

    Args: enable_timing: whether `elapsed_time` can be asked; blocking: whether `synchronize` lets the CPU sleep;
    interprocess: whether `ipc_handle` can be given to another process.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess and enable_timing:
            raise RuntimeError("Event: an event for other processes cannot measure time; leave out enable_timing")
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self.device: device | None = None
        self.raw: Any = None

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> "Event":
        """The event of another process whose `ipc_handle` this is."""
        event = cls(interprocess=True)
        event._create(index_of(device), handle)
        return event

    def _create(self, index: int, handle: bytes | None = None) -> None:
        cuda = backend.require_cupy().cuda
        with _on(index):
            if handle is None:
                self.raw = cuda.Event(self.blocking, not self.enable_timing, self.interprocess)
            else:
                self.raw = _Opened(cuda.runtime, cuda.runtime.ipcOpenEventHandle(handle))
        self.device = device("cuda", index)

    @property
    def cuda_event(self) -> int:
        """The cudaEvent_t, as an integer; 0 before the first record."""
        return 0 if self.raw is None else int(self.raw.ptr)

    def record(self, stream: Stream | None = None) -> None:
        """Records the event after all work that a stream (the current one) has now.

        Raises: RuntimeError for a stream of another GPU than the one it was made on.
        """
        if stream is None:
            stream = current_stream()
        if self.raw is None:
            self._create(stream.device_index)
        elif self.device is not stream.device:
            raise RuntimeError(
                f"Event device {self.device} does not match recording stream's device {stream.device}; use one event "
                "a device"
            )
        with _on(stream.device_index):
            backend.require_cupy().cuda.runtime.eventRecord(self.raw.ptr, stream.cuda_stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Work given to a stream (the current one) from now on waits for the event; nothing before the first record."""
        if self.raw is not None:
            stream = current_stream() if stream is None else stream
            with _on(stream.device_index):
                stream.raw.wait_event(self.raw)

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return self.raw is None or has_passed(self.raw)

    def synchronize(self) -> None:
        """Waits for the work before the event."""
        if self.raw is not None:
            backend.require_cupy().cuda.runtime.eventSynchronize(self.raw.ptr)

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds between this event and a later one.

        Raises: ValueError unless both measure time and were recorded; RuntimeError unless both are done.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.raw is None or end_event.raw is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time; synchronize() first")
        return float(backend.require_cupy().cuda.get_elapsed_time(self.raw, end_event.raw))

    def ipc_handle(self) -> bytes:
        """What another process needs for `from_ipc_handle`.

        Raises: RuntimeError unless the event was made with interprocess=True.
        """
        if not self.interprocess:
            raise RuntimeError("ipc_handle: the event was not made for other processes; use Event(interprocess=True)")
        if self.raw is None:
            self._create(current_device())
        handle: bytes = backend.require_cupy().cuda.runtime.ipcGetEventHandle(self.raw.ptr)
        return handle

    def __repr__(self) -> str:
        return f"<engine.cuda.Event {self.cuda_event:#x}>" if self.raw is not None else "<engine.cuda.Event unrecorded>"


_NOT_READY = 600  # cudaErrorNotReady, which CuPy has no name for


def has_passed(event: Any) -> bool:
    """Whether the work before an event of CuPy's is done.

    Raises: CUDARuntimeError where the GPU has failed. CuPy's own `done` says False then, for ever.
    """
    runtime = backend.require_cupy().cuda.runtime
    status = runtime.eventQuery(event.ptr)
    if status not in (0, _NOT_READY):
        raise runtime.CUDARuntimeError(status)
    return bool(status == 0)


class _Opened:
    """An event of another process."""

    def __init__(self, runtime: Any, pointer: int) -> None:
        self.ptr = pointer
        self._destroy = runtime.eventDestroy

    def __del__(self) -> None:
        self._destroy(self.ptr)


def is_current_stream_capturing() -> bool:
    """Whether what the current stream is given goes into a CUDA graph; False without a GPU."""
    return is_available() and bool(backend.require_cupy().cuda.get_current_stream().is_capturing())
