"""Queueing work: every kernel, copy and fill passes here, is checked for races, and runs or is recorded."""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tests.cuda_simulator import counters, memory, pinned, races, streams
from tests.cuda_simulator.errors import CUDARuntimeError

Range = tuple[memory.Block, int, int]  # block, first byte, byte after the last


def extent(block: memory.Block | None, pointer: int, shape: Iterable[int], strides: Iterable[int], size: int) -> Any:
    """The bytes between an array's first and last element, as a Range (None: no elements, or not known memory)."""
    if block is None:
        return None
    low = high = 0
    for length, step in zip(shape, strides, strict=True):
        if length == 0:
            return None
        if step < 0:
            low += step * (length - 1)
        else:
            high += step * (length - 1)
    return block, pointer + low, pointer + high + size


def submit(
    what: str,
    run: Callable[[], Any],
    reads: Iterable[Range | None],
    writes: Iterable[Range | None],
    queue: streams.Queue | None = None,
) -> None:
    """Queues one piece of work on `queue` (default: the current stream): recorded while the stream is captured, else
    run at once, after its accesses were found to be ordered.

    Raises: RaceError.
    """
    with streams.LOCK:
        queue = streams.current_queue() if queue is None else queue
        streams.begin(queue)
        touched_read = [each for each in reads if each is not None]
        touched_write = [each for each in writes if each is not None]
        label = f"{what} at {races.place()} on {queue.describe()}"
        if queue.capture is not None:
            queue.capture.add(queue, label, run, touched_read, touched_write)
            return
        check(queue, label, touched_read, touched_write)
        run()


def check(queue: streams.Queue, label: str, reads: Iterable[Range], writes: Iterable[Range]) -> None:
    """Raises: RaceError for an access that nothing orders after one before; CUDARuntimeError for freed memory."""
    for ranges, write in ((reads, False), (writes, True)):
        for block, start, stop in ranges:
            if not block.alive:
                raise CUDARuntimeError("cudaErrorIllegalAddress")
            block.history.access(start, stop, write, queue.clock, queue.timeline, label)


def capturing() -> bool:
    """Whether the current stream records a graph."""
    return streams.current_queue().capture is not None


def host_bytes(pointer: int, size: int) -> Any:
    """`size` bytes of this process's memory as an array."""
    if size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_ubyte * size).from_address(pointer), np.uint8)


def range_of(pointer: int, size: int) -> Range | None:
    """The bytes of device memory at an address; None for memory of the host.

    Raises: CUDARuntimeError for bytes past the end of an allocation.
    """
    block = memory.find(pointer)
    if block is None:
        return None
    if pointer + size > block.start + block.size:
        raise CUDARuntimeError("cudaErrorInvalidValue")
    return block, pointer, pointer + size


def copy_bytes(target: int, source: int, size: int, queue: streams.Queue | None, what: str = "memcpy") -> bool:
    """cudaMemcpyAsync on `queue`, or cudaMemcpy (None: on the null stream, and the host waits). Returns whether the
    host waited, as it does for a copy to pageable memory.

    Raises: CUDARuntimeError for a copy past the end of device memory, and for one between device and pageable memory
    while the stream is captured; RaceError.
    """
    if size == 0:
        return False
    to, since = range_of(target, size), range_of(source, size)
    waits = queue is None
    if queue is None:
        streams.forbid_in_capture()
        queue = streams.queue_of(0)
    pinned_to = pinned.find(target) if to is None else None
    pinned_since = pinned.find(source) if since is None else None
    kind = "pinned"
    if to is not None and since is not None:
        kind = "device_copies" if to[0].device == since[0].device else "peer"
    elif (to is None and pinned_to is None) or (since is None and pinned_since is None):
        kind = "pageable"
        if queue.capture is not None:
            queue.capture.invalid = True
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported")
    if queue.capture is None:
        counters.transferred(kind, size)

    def run() -> None:
        if pinned_since is not None:
            streams.deliver_before_reading(queue)
        data = host_bytes(source, size)
        if to is not None:
            host_bytes(target, size)[:] = data
            if pinned_since is not None:
                _watch(queue, source, size)
        elif pinned_to is not None:
            found = data.copy()
            streams.later(queue, lambda: np.copyto(host_bytes(target, size), found))
        else:
            host_bytes(target, size)[:] = data

    reads: list[Any] = [since]
    writes: list[Any] = [to]
    if pinned_since is not None:
        reads.append((_HostRange(pinned_since), source, source + size))
    if pinned_to is not None:
        writes.append((_HostRange(pinned_to), target, target + size))
    submit(what, run, reads, writes, queue)
    if waits or (kind == "pageable" and to is None):
        streams.synchronize_queue(queue, what)
        return True
    return False


class _HostRange:
    """Page-locked memory where a block of device memory is expected."""

    def __init__(self, found: tuple[int, int, races.History]) -> None:
        self.start, self.size, self.history = found
        self.alive = True
        self.device = -1
        self.generation = self.handed_out = 0


def _watch(queue: streams.Queue, source: int, size: int) -> None:
    """The host must leave alone what a copy to the device reads until the copy is known to be done."""
    sent = host_bytes(source, size).copy()
    label = races.place()

    def verify() -> None:
        if pinned.find(source) is not None and not np.array_equal(host_bytes(source, size), sent):
            races.report(f"race: the host wrote page-locked memory before the copy to the device of {label} was done")

    streams.later(queue, verify)


def set_bytes(pointer: int, value: int, size: int, queue: streams.Queue) -> None:
    """cudaMemsetAsync."""
    if size == 0:
        return
    target = range_of(pointer, size)
    view = host_bytes(pointer, size)

    def run() -> None:
        view[:] = value & 0xFF

    submit("memset", run, [], [target], queue)


def host_function(queue: streams.Queue, call: Callable[[], None]) -> None:
    """cudaLaunchHostFunc: the host function sees all that was queued before it."""

    def run() -> None:
        streams.deliver_before_reading(queue)
        call()

    submit("host function", run, [], [], queue)
