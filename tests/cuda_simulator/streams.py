"""Streams and events as the driver sees them, and the order they give to work (see races.py).

Work runs at once on the calling thread. Only writes to page-locked host memory are put off until the host has waited
for them, so that a program that reads too early reads what was there before.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.cuda_simulator import board, counters, races
from tests.cuda_simulator.errors import CUDARuntimeError

_timelines = itertools.count(1)
LOCK = threading.RLock()  # one kernel at a time
PER_THREAD = 2  # cudaStreamPerThread
_local = threading.local()
_count = 0  # devices


@dataclass(eq=False)
class Queue:
    """A stream of one device as the driver sees it; several Stream objects may stand for it."""

    handle: int
    device: int
    blocking: bool
    priority: int = 0
    flags: int = 0
    asked: races.Clock | None = None  # the clock when `done` last said no
    clock: races.Clock = field(default_factory=dict)
    capture: Any = None  # graphs.Capture while work is recorded
    timeline: int = field(default_factory=lambda: board.first_timeline() + next(_timelines))  # its name in clocks

    @property
    def null(self) -> bool:
        return self.handle == 0

    def describe(self) -> str:
        return f"{'the null stream' if self.null else f'stream {self.handle:#x}'} of device {self.device}"


@dataclass(eq=False)
class Moment:
    """An event as the driver sees it."""

    handle: int
    device: int
    flags: int
    clock: races.Clock | None = None  # None: never recorded, so nothing to wait for
    time: float = 0.0
    capture: Any = None
    asked: bool = False
    exported: bytes | None = None  # its IPC handle
    shared: tuple[board.Board, int] | None = None  # where processes find its clock


_queues: dict[int, Queue] = {}
_nulls: dict[int, Queue] = {}
_moments: dict[int, Moment] = {}
_waiting: list[tuple[int, int, Callable[[], None]]] = []  # timeline, tick, what the host sees once it has waited
_gone: dict[int, races.Clock] = {}  # device: work of streams that were destroyed
_handles = iter(range(0x5000_0000, 0x7FFF_FFFF, 0x10))


def reset(count: int) -> None:
    """`count` fresh devices with nothing queued."""
    global _count
    _count = count
    _local.__dict__.clear()
    for table in (_queues, _nulls, _gone, races.HOST):
        table.clear()
    for moment in _moments.values():  # somebody holds them still
        moment.clock = moment.capture = moment.exported = moment.shared = None
    _waiting.clear()
    races.found.clear()


def device_count() -> int:
    return _count


def current_device() -> int:
    return getattr(_local, "device", 0)


def set_device(device: int) -> None:
    """Raises: CUDARuntimeError for a device that is not there."""
    if not 0 <= device < _count:
        raise CUDARuntimeError("cudaErrorInvalidDevice")
    _local.device = device


def queue_of(handle: int, device: int | None = None) -> Queue:
    """The stream behind a pointer: 0 and 1 (cudaStreamLegacy) are the null stream of the device, 2 the thread's own.

    Raises: CUDARuntimeError for a stream that was destroyed or never was.
    """
    device = current_device() if device is None else device
    if handle in (0, 1):
        if device not in _nulls:
            _nulls[device] = Queue(0, device, blocking=True)
        return _nulls[device]
    if handle == PER_THREAD:
        own: dict[int, Queue] = _local.__dict__.setdefault("own", {})
        if device not in own:
            own[device] = Queue(PER_THREAD, device, blocking=True)
        return own[device]
    if handle not in _queues:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    return _queues[handle]


def create_queue(flags: int = 0, priority: int = 0) -> int:
    """cudaStreamCreateWithPriority on the current device; flags 1: cudaStreamNonBlocking."""
    handle = next(_handles)
    _queues[handle] = Queue(handle, current_device(), blocking=not flags & 1, priority=priority, flags=flags)
    return handle


def destroy_queue(handle: int) -> None:
    queue = _queues.pop(handle, None)
    if queue is not None:
        races.join(_gone.setdefault(queue.device, {}), queue.clock)


def begin(queue: Queue) -> None:
    """One piece of work more on a stream: after what the host waited for, and in the order of the legacy null stream.

    Raises: CUDARuntimeError for the null stream while a blocking stream of its device is captured.
    """
    clock = queue.clock
    races.join(clock, races.HOST)
    if queue.null:
        for other in _queues.values():
            if other.device == queue.device and other.blocking:
                if other.capture is not None:
                    raise CUDARuntimeError("cudaErrorStreamCaptureImplicit")
                races.join(clock, other.clock)
    elif queue.blocking and queue.capture is None:
        races.join(clock, queue_of(0, queue.device).clock)
    clock[queue.timeline] = clock.get(queue.timeline, 0) + 1


def later(queue: Queue, action: Callable[[], None]) -> None:
    """Puts off what the last work on `queue` (of a graph: the work on the stream it is launched on) does to host memory
    until the host has waited for it."""
    queue = getattr(_local, "launching", None) or queue
    _waiting.append((queue.timeline, queue.clock[queue.timeline], action))


def deliver(clock: races.Clock) -> None:
    """Makes visible in host memory what `clock` comes after."""
    due = [each for each in _waiting if clock.get(each[0], 0) >= each[1]]
    if due:
        _waiting[:] = [each for each in _waiting if clock.get(each[0], 0) < each[1]]
        errors = []
        for _, _, action in due:
            try:
                action()
            except races.RaceError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def deliver_before_reading(queue: Queue) -> None:
    """Copies and host functions in a stream see what the device wrote to page-locked memory; the host has to wait."""
    deliver((getattr(_local, "launching", None) or queue).clock)


def host_waits(clock: races.Clock) -> None:
    """The host comes after `clock`."""
    races.join(races.HOST, clock)
    board.host_waited(clock)
    deliver(races.HOST)


@contextmanager
def launching(queue: Queue) -> Iterator[None]:
    """The work of a graph that runs inside is on `queue`, wherever it was captured."""
    _local.launching = queue
    try:
        yield
    finally:
        _local.launching = None


def forbid_in_capture() -> None:
    """Raises: CUDARuntimeError where the current stream records a graph: a call that makes the host wait cannot be
    recorded."""
    queue = current_queue()
    if queue.capture is not None:
        queue.capture.invalid = True
        raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")


def synchronize_queue(queue: Queue, what: str = "synchronize") -> None:
    """The host waits for all work of one stream."""
    if queue.capture is not None:
        queue.capture.invalid = True
        raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
    with LOCK:
        counters.waited(what)
        if queue.null:  # the legacy stream comes after the blocking ones
            begin(queue)
        host_waits(queue.clock)


def synchronize_device(device: int) -> None:
    """The host waits for all work of one device."""
    with LOCK:
        counters.waited("synchronize device")
        for queue in all_queues(device):
            if queue.capture is not None:
                queue.capture.invalid = True
                raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
            host_waits(queue.clock)
        host_waits(_gone.get(device, {}))


def all_queues(device: int) -> list[Queue]:
    own = _local.__dict__.get("own", {})
    candidates = [*_queues.values(), queue_of(0, device), *own.values()]
    return [queue for queue in candidates if queue.device == device]


def create_moment(flags: int) -> int:
    handle = next(_handles)
    _moments[handle] = Moment(handle, current_device(), flags)
    return handle


def moment_of(handle: int) -> Moment:
    """Raises: CUDARuntimeError for an event that was destroyed or never was."""
    if handle not in _moments:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    return _moments[handle]


def destroy_moment(handle: int) -> None:
    from tests.cuda_simulator import ipc

    moment = _moments.pop(handle, None)
    if moment is not None:
        ipc.forget_event(moment)


def record(moment: Moment, queue: Queue) -> None:
    """cudaEventRecord: the event stands for all work queued so far."""
    if moment.device != queue.device:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    with LOCK:
        begin(queue)
        moment.clock = dict(queue.clock)
        moment.time = time.perf_counter()
        moment.capture = queue.capture
        moment.asked = False
        if moment.shared is not None and queue.capture is None:
            where, number = moment.shared
            with where.locked():
                where.write(number, moment.clock)


def _refresh(moment: Moment) -> None:
    """Another process may have recorded the event since."""
    if moment.shared is not None:
        where, number = moment.shared
        with where.locked():
            clock = where.read(number)
        if clock is not None:
            moment.clock = dict(clock)  # type: ignore[call-overload]


def wait(queue: Queue, moment: Moment) -> None:
    """cudaStreamWaitEvent: what is queued from now on comes after the event. A stream that waits for an event of a
    captured stream is captured with it."""
    with LOCK:
        _refresh(moment)
        if moment.clock is None:
            return
        if moment.capture is not None:
            if not moment.capture.open:
                raise CUDARuntimeError("cudaErrorCapturedEvent")
            if queue.capture is None:
                moment.capture.enter(queue)
            elif queue.capture is not moment.capture:
                raise CUDARuntimeError("cudaErrorStreamCaptureIsolation")
        elif queue.capture is not None:  # only the order inside the stream that began the capture reaches back
            queue.capture.invalid = True
            raise CUDARuntimeError("cudaErrorStreamCaptureIsolation")
        races.join(queue.clock, moment.clock)


def synchronize_moment(moment: Moment) -> None:
    """cudaEventSynchronize: the host waits for the event."""
    with LOCK:
        if moment.capture is not None:
            raise CUDARuntimeError("cudaErrorCapturedEvent")
        counters.waited("synchronize event")
        _refresh(moment)
        if moment.clock is not None:
            host_waits(moment.clock)


def query_moment(moment: Moment) -> bool:
    """Whether the event's work is done: not yet the first time one asks, so that both answers are met."""
    with LOCK:
        if moment.capture is not None:
            raise CUDARuntimeError("cudaErrorCapturedEvent")
        _refresh(moment)
        if moment.clock is None or races.reached(races.HOST, moment.clock):
            return True
        if not moment.asked:
            moment.asked = True
            return False
        host_waits(moment.clock)
        return True


def set_current(device: int, stream: Any) -> None:
    """`stream` (with a `ptr` and a `device_id`) is the one on which this thread queues its work for a device."""
    _local.__dict__.setdefault("streams", {})[device] = stream


def entered(device: int) -> list[Any]:
    """The streams of a device whose `with` this thread is in, outermost first."""
    found: list[Any] = _local.__dict__.setdefault("entered", {}).setdefault(device, [])
    return found


def devices_entered() -> list[int]:
    """The devices of those of all devices."""
    found: list[int] = _local.__dict__.setdefault("devices_entered", [])
    return found


def current(device: int) -> Any:
    """The stream that `set_current` was last given for a device; None for the null stream."""
    return _local.__dict__.get("streams", {}).get(device)


def current_queue() -> Queue:
    """The stream on which this thread queues its work."""
    device = current_device()
    stream = current(device)
    if stream is None:
        return queue_of(0, device)
    return queue_of(stream.ptr, device if stream.device_id < 0 else stream.device_id)
