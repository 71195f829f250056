"""Page-locked host memory, which copies of a stream may read and write while the host goes on."""

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cuda_simulator import races
from tests.cuda_simulator.errors import CUDARuntimeError
from tests.cuda_simulator.memory import POISON


def reset() -> None:
    """A fresh pool; the device has touched nothing."""
    global _pinned_pool, _pinned_allocator
    for start, (size, _) in _pinned.items():
        _pinned[start] = (size, races.History())
    _pinned_pool = PinnedMemoryPool()
    _pinned_allocator = _pinned_pool.malloc


_pinned: dict[int, tuple[int, races.History]] = {}  # start: size, who touched it on the device


def find(pointer: int) -> tuple[int, int, races.History] | None:
    """(start, size, history) of the page-locked range that holds a host address."""
    for start, (size, history) in _pinned.items():
        if start <= pointer < start + size:
            return start, size, history
    return None


def pin(start: int, size: int) -> None:
    """cudaHostRegister. Raises CUDARuntimeError for a range that is registered already."""
    if find(start) is not None:
        raise CUDARuntimeError("cudaErrorHostMemoryAlreadyRegistered")
    _pinned[start] = (size, races.History())


def unpin(start: int) -> None:
    """cudaHostUnregister."""
    if _pinned.pop(start, None) is None:
        raise CUDARuntimeError("cudaErrorHostMemoryNotRegistered")


class PinnedMemory:
    """`cupy.cuda.PinnedMemory`: page-locked host memory."""

    def __init__(self, size: int, flags: int = 0) -> None:
        self._bytes = np.full(max(size, 1), POISON, np.uint8)
        self.ptr = self._bytes.ctypes.data
        self.size = size
        pin(self.ptr, max(size, 1))
        weakref.finalize(self, _pinned.pop, self.ptr, None).atexit = False


class PinnedMemoryPointer:
    """`cupy.cuda.PinnedMemoryPointer`: has the buffer protocol, so that `numpy.frombuffer` takes it.

    Python 3.11 gives classes written in Python no buffer protocol; an array of ctypes has it, and this is one.
    """

    mem: Any
    ptr: int


def _pinned_pointer(memory: Any, offset: int) -> Any:
    kind = _pointer_types.get(memory.size - offset)
    if kind is None:

        def size(self: Any) -> int:
            return memory_size(self)

        def memory_size(self: Any) -> int:
            return self.mem.size - (self.ptr - self.mem.ptr)

        base = ctypes.c_ubyte * max(memory.size - offset, 0)
        kind = _pointer_types[memory.size - offset] = type(
            "PinnedMemoryPointer", (base,), {"size": size, "__int__": lambda self: self.ptr}
        )
    pointer = kind.from_address(memory.ptr + offset)
    pointer.mem = memory
    pointer.ptr = memory.ptr + offset
    return pointer


_pointer_types: dict[int, Any] = {}


class PinnedMemoryPool:
    """`cupy.cuda.PinnedMemoryPool`: sizes are rounded up to powers of two pages and given again."""

    def __init__(self, allocator: Callable[[int], Any] | None = None) -> None:
        self._allocator = allocator
        self._free: dict[int, list[PinnedMemory]] = {}

    def malloc(self, size: int) -> Any:
        size = max(512, 1 << (max(size, 1) - 1).bit_length())
        memories = self._free.get(size)
        memory = memories.pop() if memories else PinnedMemory(size)
        lent = _LentPinned(memory)
        weakref.finalize(lent, self._free.setdefault(size, []).append, memory).atexit = False
        return _pinned_pointer(lent, 0)

    def free(self, ptr: int, size: int) -> None:
        raise NotImplementedError("the simulated pool takes memory back by itself")

    def free_all_blocks(self) -> None:
        self._free.clear()

    def n_free_blocks(self) -> int:
        return sum(map(len, self._free.values()))


class _LentPinned:
    """Page-locked memory on loan from a pool."""

    def __init__(self, memory: PinnedMemory) -> None:
        self._memory = memory
        self.ptr = memory.ptr
        self.size = memory.size


_pinned_pool: PinnedMemoryPool
_pinned_allocator: Callable[[int], Any]


def alloc_pinned_memory(size: int) -> Any:
    """`cupy.cuda.alloc_pinned_memory`: page-locked host memory with the buffer protocol."""
    return _pinned_allocator(size)


def default_pinned_pool() -> PinnedMemoryPool:
    return _pinned_pool
