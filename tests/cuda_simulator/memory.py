"""Device memory: one anonymous shared file a device (so that other processes can map it), and the
blocks of it that cudaMalloc gives.

A device address is an address of this process, too, so that kernels compiled for the host may follow pointers they find
in device memory. Bytes that nobody wrote are 0xFF: NaN as floats.
"""

import bisect
import mmap
import os
import weakref
from typing import Any

import numpy as np

from tests.cuda_simulator import counters, races, streams
from tests.cuda_simulator.errors import CUDARuntimeError

RESERVED = 1 << 36  # addresses a device; only what is used takes memory
UNIT = 512
GUARD = 64
HEADER = 1 << 20  # first bytes of a device's memory, for ipc.py
POISON = 0xFF
CANARY = 0xA5
_GIVEN_BACK = 1 << 18  # bytes from which on freed memory goes back to the operating system


class Space:
    """A mapping of device memory into this process: a device's own, or a peer's opened by its IPC handle."""

    def __init__(self, descriptor: int, offset: int, size: int, device: int) -> None:
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0x4000)
        self.map = mmap.mmap(descriptor, size, flags=flags, offset=offset)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.base = self.bytes.ctypes.data
        self.size = size
        self.device = device
        self.starts: list[int] = []
        self.blocks: dict[int, Block] = {}

    def add(self, block: "Block") -> None:
        bisect.insort(self.starts, block.start)
        self.blocks[block.start] = block

    def remove(self, block: "Block") -> None:
        self.starts.remove(block.start)
        del self.blocks[block.start]

    def find(self, pointer: int) -> "Block | None":
        at = bisect.bisect_right(self.starts, pointer) - 1
        if at < 0:
            return None
        block = self.blocks[self.starts[at]]
        return block if pointer < block.start + max(block.size, 1) else None


class Block:
    """What one cudaMalloc gave: its bytes, who touched them, and how often the pool has handed them out."""

    def __init__(self, space: Space, start: int, size: int) -> None:
        self.space = space
        self.start = start
        self.size = size
        self.device = space.device
        self.history = races.History()
        self.generation = 0
        self.handed_out = 0  # by pools, outside captures: what one capture frees another one may have
        self.alive = True
        self.left = False  # by a program before the last `install`

    def view(self, start: int, size: int) -> Any:
        first = start - self.space.base
        return self.space.bytes[first : first + size]


class _Arena:
    """The memory of one device: blocks are handed out in order, and again after cudaFree."""

    def __init__(self, device: int) -> None:
        self.descriptor = os.memfd_create(f"simulated-device-{device}")
        os.ftruncate(self.descriptor, RESERVED)
        self.space = Space(self.descriptor, 0, RESERVED, device)
        self.top = HEADER
        self.used = 0
        self.left = 0  # bytes that programs before the last `install` still hold
        self.free: dict[int, list[int]] = {}


_arenas: dict[int, _Arena] = {}
_spaces: list[Space] = []
_capacity = 0


def reset(capacity: int) -> None:
    """Nobody has touched anything; addresses of blocks that somebody still holds are not given again."""
    global _capacity
    _capacity = capacity
    for arena in _arenas.values():
        arena.left = arena.used
        for block in arena.space.blocks.values():
            block.history = races.History()
            block.left = True


def arena_of(device: int) -> _Arena:
    if device not in _arenas:
        _arenas[device] = _Arena(device)
        _spaces.append(_arenas[device].space)
    return _arenas[device]


def add_space(space: Space) -> None:
    _spaces.append(space)


def remove_space(space: Space) -> None:
    _spaces.remove(space)


def find(pointer: int) -> Block | None:
    """The device block that holds an address; None for host memory.

    Raises: CUDARuntimeError for an address of a device that no block holds.
    """
    for space in _spaces:
        if space.base <= pointer < space.base + space.size:
            block = space.find(pointer)
            if block is None:
                raise CUDARuntimeError("cudaErrorIllegalAddress")
            return block
    return None


def is_device(pointer: int) -> bool:
    """Whether an address lies where device memory is, used or not."""
    return any(space.base <= pointer < space.base + space.size for space in _spaces)


def info(device: int) -> tuple[int, int]:
    """Free and all bytes of a device."""
    arena = arena_of(device)
    return min(_capacity - arena.used + arena.left, _capacity), _capacity


def malloc(size: int) -> Block:
    """cudaMalloc on the current device.

    Raises: CUDARuntimeError where the memory is full, or a stream records a graph in a mode that forbids it.
    """
    from tests.cuda_simulator import graphs

    graphs.forbid_unsafe()
    device = streams.current_device()
    arena = arena_of(device)
    room = -(-(max(size, 1) + GUARD) // UNIT) * UNIT
    if arena.used - arena.left + room > _capacity:
        raise CUDARuntimeError("cudaErrorMemoryAllocation")
    offsets = arena.free.get(room)
    if offsets:
        offset = offsets.pop()
    else:
        offset = arena.top
        if offset + room > RESERVED:
            raise CUDARuntimeError("cudaErrorMemoryAllocation")
        arena.top += room
    arena.used += room
    block = Block(arena.space, arena.space.base + offset, size)
    arena.space.add(block)
    counters.count("raw_allocations")
    block.view(block.start, size)[:] = POISON
    block.view(block.start + size, GUARD)[:] = CANARY
    return block


def free(block: Block) -> None:
    """cudaFree: waits for the device, and the bytes are gone.

    Raises: RaceError where somebody wrote past the block's end.
    """
    from tests.cuda_simulator import ipc

    check_guard(block)
    block.alive = False
    ipc.forget(block)
    arena = arena_of(block.device)
    if block.space is not arena.space or block.start not in arena.space.blocks:
        return
    arena.space.remove(block)
    room = -(-(max(block.size, 1) + GUARD) // UNIT) * UNIT
    arena.used -= room
    arena.left -= room * block.left
    offset = block.start - arena.space.base
    arena.free.setdefault(room, []).append(offset)
    first, last = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE, (offset + room) // mmap.PAGESIZE * mmap.PAGESIZE
    if last - first >= _GIVEN_BACK:
        arena.space.map.madvise(mmap.MADV_REMOVE, first, last - first)


def check_guard(block: Block) -> None:
    """Raises: RaceError where somebody wrote past the block's end."""
    if block.space is arena_of(block.device).space and (block.view(block.start + block.size, GUARD) != CANARY).any():
        block.view(block.start + block.size, GUARD)[:] = CANARY
        races.report(f"{block.size} bytes of device memory at {block.start:#x}: somebody wrote past their end")


class BaseMemory:
    """What CuPy's memory objects have: ptr, size, device_id, device. Programs may have subclasses of their own."""

    ptr: int
    size: int
    device_id: int
    _block: Block | None = None

    @property
    def block(self) -> Block | None:
        """The block that holds the bytes; None for no bytes, and for memory of the host."""
        if self._block is None and self.ptr:
            self._block = find(self.ptr)
        return self._block

    @property
    def device(self) -> Any:
        from tests.cuda_simulator import handles

        return handles.Device(self.device_id)

    def __int__(self) -> int:
        return self.ptr


class Memory(BaseMemory):
    """`cupy.cuda.Memory`: memory of cudaMalloc, freed with the object."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.device_id = streams.current_device()
        self._block = malloc(size) if size else None
        self.ptr = self._block.start if self._block is not None else 0
        if self._block is not None:
            weakref.finalize(self, free, self._block).atexit = False


class UnownedMemory(BaseMemory):
    """`cupy.cuda.UnownedMemory`: memory that `owner` keeps."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr = ptr
        self.size = size
        self._owner = owner
        self.device_id = self.block.device if device_id < 0 and self.block is not None else max(device_id, 0)


class MemoryPointer:
    """`cupy.cuda.MemoryPointer`: an address inside a memory object."""

    __slots__ = ("mem", "ptr")

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        if mem is None:
            raise TypeError("MemoryPointer: mem is None")
        self.mem = mem
        self.ptr = mem.ptr + offset

    @property
    def device_id(self) -> int:
        return self.mem.device_id

    @property
    def device(self) -> Any:
        return self.mem.device

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> "MemoryPointer":
        return self + -offset

    def copy_from(self, mem: Any, size: int) -> None:
        self._copy(self.ptr, _address(mem), size, None)

    def copy_from_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy(self.ptr, _address(mem), size, stream, True)

    copy_from_device = copy_from
    copy_from_host = copy_from
    copy_from_device_async = copy_from_async
    copy_from_host_async = copy_from_async

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy(_address(mem), self.ptr, size, stream, True)

    def _copy(self, target: int, source: int, size: int, stream: Any, asynchronous: bool = False) -> None:
        from tests.cuda_simulator import execution

        if asynchronous:
            queue = streams.current_queue() if stream is None else stream._queue()
            execution.copy_bytes(target, source, size, queue)
        else:
            execution.copy_bytes(target, source, size, None)

    def memset(self, value: int, size: int) -> None:
        from tests.cuda_simulator import execution

        execution.set_bytes(self.ptr, value, size, streams.queue_of(0))


def _address(memory: Any) -> int:
    """The address of a MemoryPointer, a page-locked pointer, or an integer or ctypes pointer to host memory."""
    if hasattr(memory, "ptr"):
        return int(memory.ptr)
    value = getattr(memory, "value", memory)
    return int(value)
