"""CuPy's memory pools: what is freed is kept, and given again to the stream it was allocated on."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.cuda_simulator import counters, memory, streams
from tests.cuda_simulator.errors import CUDARuntimeError
from tests.cuda_simulator.memory import POISON, UNIT, BaseMemory, Memory, MemoryPointer, check_guard


def reset() -> None:
    """A fresh default pool, which is the allocator."""
    global _default_pool, _allocator
    _default_pool = MemoryPool()
    _allocator = _default_pool.malloc


class _Inner(BaseMemory):
    """A part of memory of cudaMalloc."""

    def __init__(self, size: int) -> None:
        self._whole = Memory(size + UNIT)
        self._block = self._whole.block
        self.ptr = self._whole.ptr + UNIT
        self.size = size
        self.device_id = self._whole.device_id


class PooledMemory(BaseMemory):
    """Memory of a pool, which gets it back with the end of the object."""

    def __init__(self, inner: BaseMemory, size: int, pool: "MemoryPool", key: tuple[int, int, int]) -> None:
        self._block = inner.block
        self.ptr = inner.ptr
        self.size = size
        self.device_id = inner.device_id
        _live[self.ptr] = size
        weakref.finalize(self, pool._give_back, inner, key).atexit = False


_live: dict[int, int] = {}  # address to bytes of what pools have handed out


def allocations() -> list[tuple[int, int]]:
    """(address, bytes) of all device memory in use, for the checks of kernels."""
    raw = [
        (block.start, block.size) for space in memory._spaces for block in space.blocks.values() if not block.generation
    ]
    return raw + list(_live.items())


class OutOfMemoryError(MemoryError):
    """`cupy.cuda.memory.OutOfMemoryError`."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        limited = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{limited}).")
        self._size, self._total, self._limit = size, total, limit


def _poison(view: Any) -> None:
    """What was in the memory is gone: at once, or where a graph is captured at this point of its launches, since work
    that was captured before may still read it."""
    capture = streams.current_queue().capture

    def run() -> None:
        view[:] = POISON

    if capture is None:
        run()
    else:
        capture.work.append(("malloc", run, [], []))


class MemoryPool:
    """`cupy.cuda.MemoryPool`: blocks by device, stream and rounded size; a freed block is given again to the stream it
    was allocated on, at once. As CuPy's pool cuts what it has, a block need not begin where cudaMalloc's does: here it
    never does."""

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self._allocator = allocator if allocator is not None else (lambda size: MemoryPointer(_Inner(size), 0))
        self._free: dict[tuple[int, int, int], list[BaseMemory]] = {}
        self._total: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._limit: dict[int, int] = {}

    def malloc(self, size: int) -> MemoryPointer:
        size = -(-size // UNIT) * UNIT
        device = streams.current_device()
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        counters.count("allocations")
        key = (device, streams.current_queue().timeline, size)
        found = self._free[key].pop() if self._free.get(key) else self._raw(size, device)
        block = found.block
        if block is not None:
            block.generation += 1
            block.handed_out += streams.current_queue().capture is None
            _poison(block.view(found.ptr, size))
        self._used[device] = self._used.get(device, 0) + size
        return MemoryPointer(PooledMemory(found, size, self, key), 0)

    def _raw(self, size: int, device: int) -> BaseMemory:
        limit = self._limit.get(device, 0)
        if limit and self._total.get(device, 0) + size > limit:
            self.free_all_blocks()
            if self._total.get(device, 0) + size > limit:
                raise OutOfMemoryError(size, self._total.get(device, 0), limit)
        try:
            found: BaseMemory = self._allocator(size).mem
        except CUDARuntimeError as error:
            if error.status != 2:
                raise
            self.free_all_blocks()
            try:
                found = self._allocator(size).mem
            except CUDARuntimeError as again:
                if again.status != 2:
                    raise
                raise OutOfMemoryError(size, self._total.get(device, 0), limit) from again
        self._total[device] = self._total.get(device, 0) + size
        return found

    def _give_back(self, found: BaseMemory, key: tuple[int, int, int]) -> None:
        _live.pop(found.ptr, None)
        self._used[key[0]] -= key[2]
        self._free.setdefault(key, []).append(found)
        if found.block is not None:
            found.block.generation += 1
            check_guard(found.block)

    def free_all_blocks(self, stream: Any = None) -> None:
        device = streams.current_device()
        for key in list(self._free):
            if key[0] == device and (stream is None or key[1] == stream._queue().timeline):
                memories = self._free.pop(key)
                self._total[device] -= key[2] * len(memories)

    def n_free_blocks(self) -> int:
        device = streams.current_device()
        return sum(len(memories) for key, memories in self._free.items() if key[0] == device)

    def used_bytes(self) -> int:
        return self._used.get(streams.current_device(), 0)

    def total_bytes(self) -> int:
        return self._total.get(streams.current_device(), 0)

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        if (size is None) == (fraction is None):
            raise ValueError("set_limit: give either size or fraction")
        device = streams.current_device()
        self._limit[device] = size if size is not None else int(memory._capacity * float(fraction or 0))

    def get_limit(self) -> int:
        return self._limit.get(streams.current_device(), 0)


_default_pool: MemoryPool
_allocator: Callable[[int], MemoryPointer]
_thread = threading.local()


def alloc(size: int) -> MemoryPointer:
    """Memory of the allocator in force (default: the default pool)."""
    return getattr(_thread, "allocator", _allocator)(size)


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    global _allocator
    if hasattr(_thread, "allocator"):
        raise ValueError("Can't change the global allocator inside `using_allocator` context manager")
    _allocator = allocator if allocator is not None else (lambda size: MemoryPointer(Memory(size), 0))


def get_allocator() -> Callable[[int], MemoryPointer]:
    return getattr(_thread, "allocator", _allocator)


@contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> Iterator[None]:
    """`cupy.cuda.using_allocator`: another allocator for this thread."""
    before = _thread.__dict__.get("allocator")
    _thread.allocator = allocator if allocator is not None else (lambda size: MemoryPointer(Memory(size), 0))
    try:
        yield
    finally:
        if before is None:
            del _thread.allocator
        else:
            _thread.allocator = before


def default_pool() -> MemoryPool:
    return _default_pool
