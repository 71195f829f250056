"""What processes that share device memory tell each other, so that races between them are found, too: a file a process.

It holds how far the process's host has waited for each of its timelines (work that is done is ordered before whatever
anybody starts later), the clocks of its events that other processes may wait for, and the accesses to its memory that
other processes have mapped.
"""

import fcntl
import mmap
import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cuda_simulator import races

_TIMELINES = 1 << 20
_RECORD = 1 << 17  # bytes of one event's clock, or one block's accesses
_RECORDS = 1 << 12
_SIZE = _TIMELINES * 8 + _RECORDS * _RECORD
_HEAD = struct.Struct("<qI")  # bytes of what follows, their checksum


class Board:
    """The file of one process: this one's, or another's opened by process and descriptor."""

    def __init__(self, process: int, descriptor: int | None = None) -> None:
        self.process = process
        if descriptor is None:
            self.descriptor = os.memfd_create("simulated-device-clocks")
            os.ftruncate(self.descriptor, _SIZE)
        else:
            self.descriptor = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
            if not os.readlink(f"/proc/self/fd/{self.descriptor}").startswith("/memfd:simulated-device-clocks"):
                # It opened something else under that number, which must not be written to.
                raise OSError(f"process {process} has closed its clocks")
        self.map = mmap.mmap(self.descriptor, _SIZE, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0x4000))
        self.used = 0

    def new_record(self) -> int:
        """The number of a fresh record."""
        self.used += 1
        if self.used >= _RECORDS:
            raise MemoryError("the simulated device has no room for more IPC handles in one process")
        self.write(self.used, None)
        return self.used

    def done(self, timeline: int) -> int:
        """Up to which tick the process's host knows the work of one of its timelines to be done."""
        return int(struct.unpack_from("<q", self.map, timeline % _TIMELINES * 8)[0])

    def publish(self, clock: races.Clock) -> None:
        """The host of this process has waited for `clock`."""
        for timeline, tick in clock.items():
            if timeline // _TIMELINES == self.process:
                struct.pack_into("<q", self.map, timeline % _TIMELINES * 8, tick)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes a record meanwhile."""
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def write(self, record: int, value: object) -> None:
        data = pickle.dumps(value)
        assert len(data) + _HEAD.size <= _RECORD, "a record of a simulated device is full"
        start = _TIMELINES * 8 + record * _RECORD
        self.map[start : start + _HEAD.size + len(data)] = _HEAD.pack(len(data), zlib.crc32(data)) + data

    def read(self, record: int) -> object:
        start = _TIMELINES * 8 + record * _RECORD
        size, checksum = _HEAD.unpack_from(self.map, start)
        data = self.map[start + _HEAD.size : start + _HEAD.size + size]
        assert zlib.crc32(data) == checksum, "a record of a simulated device is damaged"
        return pickle.loads(data)


_own: Board | None = None
_others: dict[tuple[int, int], Board] = {}


def own() -> Board:
    """This process's file, made at the first call."""
    global _own
    if _own is None or _own.process != os.getpid():
        _own = Board(os.getpid())
        _own.publish(races.HOST)
    return _own


def other(process: int, descriptor: int) -> Board:
    """Another process's file. Raises OSError if that process has ended."""
    key = (process, descriptor)
    if key not in _others:
        _others[key] = Board(process, descriptor)
    return _others[key]


def first_timeline() -> int:
    """Numbers of timelines differ between processes: they begin here."""
    return os.getpid() * _TIMELINES


def host_waited(clock: races.Clock) -> None:
    """Tells other processes, if there are any, that the host of this one has waited for `clock`."""
    if _own is not None:
        _own.publish(clock)


class SharedHistory(races.History):
    """The accesses to a block that several processes have mapped, in a record of its owner's file. Places count from
    the start of the block."""

    __slots__ = ("board", "record", "start")

    def __init__(self, board: Board, record: int, start: int, before: races.History | None = None) -> None:
        super().__init__()
        self.board, self.record, self.start = board, record, start
        if before is not None:
            self.reads, self.writes = before.reads, before.writes
            for each in (*self.reads, *self.writes):
                each.start -= start
                each.stop -= start
            self._save()

    def _save(self) -> None:
        listed = [
            [(each.start, each.stop, each.timeline, each.tick, each.what, own().descriptor) for each in accesses]
            for accesses in (self.reads, self.writes)
        ]
        self.board.write(self.record, listed)

    def seen(self) -> list[races.Access]:
        with self.board.locked():
            found = self.board.read(self.record) or [[], []]
        return [
            races.Access(each[0] + self.start, each[1] + self.start, *each[2:5])
            for each in found[1]  # type: ignore[index]
            if not _is_done(each[2], each[3], each[5])
        ]

    def access(self, start: int, stop: int, write: bool, clock: races.Clock, timeline: int, what: str) -> None:
        with self.board.locked():
            found = self.board.read(self.record) or [[], []]
            self.reads, self.writes = (
                [races.Access(*each[:5]) for each in accesses if not _is_done(each[2], each[3], each[5])]
                for accesses in found  # type: ignore[attr-defined]
            )
            descriptors = {each[2]: each[5] for accesses in found for each in accesses}  # type: ignore[attr-defined]
            super().access(start - self.start, stop - self.start, write, clock, timeline, f"{what} ({os.getpid()})")
            descriptors[timeline] = own().descriptor
            listed = [
                [(a.start, a.stop, a.timeline, a.tick, a.what, descriptors[a.timeline]) for a in accesses][-200:]
                for accesses in (self.reads, self.writes)
            ]
            self.board.write(self.record, listed)


def _is_done(timeline: int, tick: int, descriptor: int) -> bool:
    """Whether the process that queued the work has waited for it, or is gone."""
    process = timeline // _TIMELINES
    if process == os.getpid():
        return races.HOST.get(timeline, 0) >= tick
    try:
        return other(process, descriptor).done(timeline) >= tick
    except OSError:
        return True
