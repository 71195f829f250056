"""Device memory and events of one process in another: a handle names the file behind the memory.

The first bytes of every device's file are slots. A slot holds a number while what its handle stands for lives, so that
a handle of freed memory, or of a destroyed event, cannot be opened.
"""

import os
import secrets
import struct
from typing import Any

from tests.cuda_simulator import board, memory, streams
from tests.cuda_simulator.errors import CUDARuntimeError

_FORM = "<4sqiiiqqii"  # kind, process, descriptor, device, slot, number, offset, descriptor of the board, its record
_MEMORY, _EVENT = b"mem", b"even"
_SIZE = 64
_slots: dict[int, int] = {}  # device: slots in use
_exported: dict[int, bytes] = {}  # address of a block: its handle
_opened: dict[bytes, tuple[memory.Space, int, int]] = {}  # handle: mapping, address, times opened


def reset() -> None:
    _exported.clear()
    _opened.clear()


def _handle(kind: bytes, device: int, offset: int, size: int, record: int) -> bytes:
    arena = memory.arena_of(device)
    slot = _slots[device] = _slots.get(device, 0) + 1
    if (slot + 1) * 16 > memory.HEADER:
        raise CUDARuntimeError("cudaErrorMemoryAllocation")
    number = secrets.randbits(62) | 1
    struct.pack_into("<qq", arena.space.map, slot * 16, number, size)
    where = board.own().descriptor
    packed = struct.pack(_FORM, kind, os.getpid(), arena.descriptor, device, slot, number, offset, where, record)
    return packed.ljust(_SIZE, b"\0")


def _read(handle: bytes, kind: bytes) -> tuple[int, ...]:
    if len(handle) != _SIZE:
        raise ValueError(f"an IPC handle has {_SIZE} bytes, got {len(handle)}")
    fields = struct.unpack_from(_FORM, handle)
    if fields[0].rstrip(b"\0") != kind:
        raise CUDARuntimeError("cudaErrorInvalidValue")
    return fields[1:]


def get_memory(pointer: int) -> bytes:
    """cudaIpcGetMemHandle: of the whole allocation that holds `pointer`.

    Raises: CUDARuntimeError for what is not device memory of this process.
    """
    block = memory.find(pointer)
    if block is None or block.space is not memory.arena_of(block.device).space:
        raise CUDARuntimeError("cudaErrorInvalidValue")
    if block.start not in _exported:
        offset = block.start - block.space.base
        record = board.own().new_record()
        block.history = board.SharedHistory(board.own(), record, block.start, block.history)
        _exported[block.start] = _handle(_MEMORY, block.device, offset, block.size, record)
    return _exported[block.start]


def forget(block: memory.Block) -> None:
    """The memory is freed: its handle opens nothing any more."""
    handle = _exported.pop(block.start, None)
    if handle is not None:
        _, _, device, slot, *_ = _read(handle, _MEMORY)
        struct.pack_into("<qq", memory.arena_of(device).space.map, slot * 16, 0, 0)


def open_memory(handle: bytes) -> int:
    """cudaIpcOpenMemHandle: the address, in this process, of the start of the other process's allocation.

    Raises: CUDARuntimeError in the process that made the handle, and for memory that was freed.
    """
    if handle in _opened:
        space, address, times = _opened[handle]
        _opened[handle] = (space, address, times + 1)
        return address
    process, descriptor, device, slot, number, offset, where, record = _read(handle, _MEMORY)
    if process == os.getpid():
        raise CUDARuntimeError("cudaErrorDeviceUninitialized")
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    except OSError as cause:
        raise CUDARuntimeError("cudaErrorMapBufferObjectFailed") from cause
    try:
        current, size = struct.unpack("<qq", os.pread(opened, 16, slot * 16))
        if current != number:
            raise CUDARuntimeError("cudaErrorMapBufferObjectFailed")
        first = offset // 4096 * 4096
        space = memory.Space(opened, first, offset - first + size, device)
    finally:
        os.close(opened)
    block = memory.Block(space, space.base + offset - first, size)
    block.history = board.SharedHistory(board.other(process, where), record, block.start)
    space.add(block)
    memory.add_space(space)
    _opened[handle] = (space, block.start, 1)
    return block.start


def close_memory(pointer: int) -> None:
    """cudaIpcCloseMemHandle.

    Raises: CUDARuntimeError for an address that `open_memory` did not give.
    """
    for handle, (space, address, times) in _opened.items():
        if address == pointer:
            if times > 1:
                _opened[handle] = (space, address, times - 1)
                return
            del _opened[handle]
            for block in space.blocks.values():
                block.alive = False
            memory.remove_space(space)
            return
    raise CUDARuntimeError("cudaErrorInvalidValue")


def get_event(handle: int) -> bytes:
    """cudaIpcGetEventHandle: of an event made with interprocess=True.

    Raises: CUDARuntimeError for another event.
    """
    moment = streams.moment_of(handle)
    if not moment.flags & 4:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    if moment.exported is None:
        record = board.own().new_record()
        moment.shared = (board.own(), record)
        board.own().write(record, moment.clock)
        moment.exported = _handle(_EVENT, moment.device, 0, 0, record)
    return moment.exported


def open_event(handle: bytes) -> int:
    """cudaIpcOpenEventHandle: the other process's event.

    Raises: CUDARuntimeError in the process that made the handle.
    """
    process, descriptor, _, slot, number, _, where, record = _read(handle, _EVENT)
    if process == os.getpid():
        raise CUDARuntimeError("cudaErrorDeviceUninitialized")
    try:
        opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY)
    except OSError as cause:
        raise CUDARuntimeError("cudaErrorMapBufferObjectFailed") from cause
    try:
        (current,) = struct.unpack("<q", os.pread(opened, 8, slot * 16))
    finally:
        os.close(opened)
    if current != number:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    opened_event = streams.create_moment(6)
    streams.moment_of(opened_event).shared = (board.other(process, where), record)
    return opened_event


def forget_event(moment: Any) -> None:
    """The event is destroyed: its handle opens nothing any more."""
    if moment.exported is not None:
        _, _, device, slot, *_ = _read(moment.exported, _EVENT)
        struct.pack_into("<qq", memory.arena_of(device).space.map, slot * 16, 0, 0)
