"""The zip file of `torch.save`: `NAME/data.pkl`, `NAME/byteorder`, and `NAME/data/KEY` for each storage.

Records are stored, not compressed, and each begins at a multiple of 64 bytes. Source:
PyTorch (docs/source/notes/serialization.rst, caffe2/serialize/inline_container.h).
"""

import zipfile
import zlib
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from engine.serialization.container import damaged

_LOCAL_HEADER = 30  # bytes in front of a record's name, by the zip format
_ALIGNMENT = 64
_LARGEST_PICKLE = 100_000_000  # bytes; as the header of a safetensors file
_PIECE = 1 << 24  # bytes read at a time, and summed while they are in the cache
_MALFORMED = (zipfile.BadZipFile, ArithmeticError, LookupError, NotImplementedError, OSError, ValueError)


class Record(NamedTuple):
    """Where a record is: counted from the start of the archive, in bytes."""

    begin: int
    size: int
    checksum: int


class Archive:
    """The records of a file, by their names without the archive's own. Raises: RuntimeError for a damaged archive."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        self._start = file.tell()
        try:
            self._size = file.seek(0, 2) - self._start
            with zipfile.ZipFile(cast("BinaryIO", _From(file, self._start))) as archive:
                entries = archive.infolist()
        except _MALFORMED as cause:
            raise damaged(where, cause) from cause
        for entry in entries:
            if (
                entry.compress_type != zipfile.ZIP_STORED
                or entry.flag_bits & 1
                or entry.compress_size != entry.file_size
            ):
                name = f"record {entry.filename!r:.100}"
                raise damaged(where, f"{name} is compressed or encrypted, which torch.save never does")
        if sum(entry.file_size for entry in entries) > self._size:
            raise damaged(where, "its records overlap")
        self._entries = {entry.filename.partition("/")[2]: entry for entry in entries}
        if len(self._entries) != len(entries):
            raise damaged(where, "two of its records have one name")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str) -> bytes:
        """A whole small record."""
        record = self._find(name)
        if record.size > _LARGEST_PICKLE:
            raise damaged(self._where, f"{name} takes {record.size} bytes")
        target = np.empty(record.size, np.uint8)
        self._fill(name, record, target)
        return target.tobytes()

    def read_into(self, name: str, target: np.ndarray) -> None:
        """Fills an array of bytes, which has to have the size of the record."""
        record = self._find(name)
        if record.size != target.size:
            raise damaged(self._where, f"record {name!r} has {record.size} bytes, {target.size} are expected")
        self._fill(name, record, target)

    def size_of(self, name: str) -> int:
        """Bytes of a record."""
        return self._find(name).size

    def _find(self, name: str) -> Record:
        entry = self._entries.get(name)
        if entry is None:
            raise damaged(self._where, f"there is no record {name!r:.100}")
        header = self._bytes(entry.header_offset, _LOCAL_HEADER)
        skipped = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        begin = entry.header_offset + _LOCAL_HEADER + skipped
        if header[:4] != b"PK\x03\x04" or begin + entry.file_size > self._size:
            raise damaged(self._where, f"record {name!r:.100} is not where the archive says")
        return Record(begin, entry.file_size, entry.CRC)

    def _bytes(self, begin: int, size: int) -> bytes:
        if not 0 <= begin <= self._size:
            raise damaged(self._where, "a record is said to be outside of the file")
        self._file.seek(self._start + begin)
        return self._file.read(size)

    def _fill(self, name: str, record: Record, target: np.ndarray) -> None:
        self._file.seek(self._start + record.begin)
        checksum = 0
        for begin in range(0, record.size, _PIECE):
            piece = target[begin : begin + _PIECE].data
            rest = piece
            while rest:
                content = self._file.read(len(rest)) if not hasattr(self._file, "readinto") else None
                count = self._file.readinto(rest) if content is None else len(content)  # type: ignore[attr-defined]
                if not count:
                    raise damaged(self._where, f"it ended {len(rest)} bytes early, while it was read")
                if content is not None:
                    rest[:count] = content
                rest = rest[count:]
            checksum = zlib.crc32(piece, checksum)
        if checksum != record.checksum:
            raise damaged(self._where, f"the checksum of record {name!r} does not match: its bytes have changed")


class _From:
    """A file from a position on, as zipfile reads it."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file, self._start = file, start

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0:
            if offset < 0:
                raise ValueError(f"an offset of {offset}")
            offset += self._start
        return self._file.seek(offset, whence) - self._start


class Writer:
    """Writes an archive record by record; `close` completes it."""

    def __init__(self, file: BinaryIO, name: str = "archive") -> None:
        self._file = _Counted(file)
        self._zip = zipfile.ZipFile(cast("BinaryIO", self._file), "w", zipfile.ZIP_STORED)
        self._name = name

    def write(self, name: str, content: bytes | memoryview) -> None:
        entry = zipfile.ZipInfo(f"{self._name}/{name}")
        entry.file_size = len(content)
        large = len(content) >= zipfile.ZIP64_LIMIT
        taken = _LOCAL_HEADER + len(entry.filename) + 4 + (20 if large else 0)
        padding = -(self._file.count + taken) % _ALIGNMENT
        entry.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
        with self._zip.open(entry, "w", force_zip64=large) as record:
            for begin in range(0, len(content), _PIECE):
                record.write(content[begin : begin + _PIECE])

    def close(self) -> None:
        self._zip.close()


class _Counted:
    """A file that is written from its present end on, and knows how much it was."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def write(self, content: bytes) -> int:
        self._file.write(content)
        self.count += len(content)
        return len(content)

    def flush(self) -> None:
        self._file.flush()
