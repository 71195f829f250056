"""The checksum of a checkpoint's bytes: as fast as they are read.

The bytes, as 64-bit words, are laid out in rows of 509 and the columns summed modulo 2**64; a CRC-32 of the sums of
each piece of 256 rows is the checksum. One wrong word changes a column; 509 is prime, so that pages which
changed places come to other columns. On an AMD EPYC, from the page cache: reading 2.7 GB/s, reading and summing 2.4,
with CRC-32 of all bytes 1.6.
"""

import zlib
from collections.abc import Callable

import numpy as np

from engine.ops.reduce.kernels.slices import prepare_columns

_COLUMNS = 509
_ROW = 8 * _COLUMNS  # bytes
_ROWS = 256
_ZEROS = np.zeros(_COLUMNS, np.int64)
PIECE = _ROWS * _ROW
"""Bytes of which the sums are one number in the checksum, about 1 MiB."""
PART = PIECE // 2
"""Bytes that are summed at a time: still in the cache they were read into."""


class Checksum:
    """Of bytes that come in parts, `PIECE` or `PART` of them each, less in the last."""

    def __init__(self) -> None:
        self._crc = 0
        self._sums, self._rows = _ZEROS, 0  # of the piece so far
        self._add_columns: Callable[[int, int], None] | None = None  # what is smaller than a row needs none

    def add(self, part: np.ndarray) -> None:
        """The next bytes, as uint8."""
        rows = part.nbytes // _ROW
        if rows:
            self._add_rows(part, rows)
        tail = part[rows * _ROW :]
        if tail.nbytes or self._rows == _ROWS:
            self._end_piece(tail.data)

    def _add_rows(self, part: np.ndarray, rows: int) -> None:
        if self._add_columns is None:
            self._sums = np.zeros(_COLUMNS, np.int64)
            self._add_columns = prepare_columns(self._sums)
        aligned = part if part.ctypes.data % 8 == 0 else part.copy()
        self._add_columns(aligned.ctypes.data, rows)
        self._rows += rows
        assert self._rows <= _ROWS, "a part reaches into the next piece"

    def _end_piece(self, tail: memoryview | bytes = b"") -> None:
        self._crc = zlib.crc32(tail, zlib.crc32(self._sums.data, self._crc))
        if self._rows:
            self._sums[:], self._rows = 0, 0

    def text(self) -> str:
        """Eight hexadecimal digits; nothing is added from then on."""
        if self._rows:
            self._end_piece()
        return f"{self._crc:08x}"


def checksum_of(content: np.ndarray) -> str:
    """The checksum of contiguous bytes, as uint8."""
    checksum = Checksum()
    for begin in range(0, content.nbytes, PIECE):
        checksum.add(content[begin : begin + PIECE])
    return checksum.text()
