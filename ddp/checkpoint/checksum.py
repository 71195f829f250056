"""The checksum of a checkpoint's bytes: as fast as they are read.

The bytes, as 64-bit words, are laid out in rows of 509 and the columns summed modulo 2**64; a CRC-32 of the sums of
each piece of 256 rows is the checksum. One wrong word changes a column; 509 is prime, so that pages which
changed places come to other columns. On an AMD EPYC, from the page cache: reading 2.7 GB/s, reading and summing 2.4,
with CRC-32 of all bytes 1.6.
"""

import zlib

import numpy as np

_COLUMNS = 509
PIECE = 256 * _COLUMNS * 8
"""Bytes that are summed at a time, about 1 MiB: still in the cache they were read into."""


class Checksum:
    """Of bytes that come in pieces of `PIECE`, the last one shorter."""

    def __init__(self) -> None:
        self._crc = 0

    def add(self, piece: np.ndarray) -> None:
        """The next bytes, as uint8."""
        rows = piece.nbytes // (8 * _COLUMNS)
        words = piece[: rows * 8 * _COLUMNS].view(np.uint64)
        self._crc = zlib.crc32(np.add.reduce(words.reshape(rows, _COLUMNS), axis=0).data, self._crc)
        self._crc = zlib.crc32(piece[rows * 8 * _COLUMNS :].data, self._crc)

    def text(self) -> str:
        """Eight hexadecimal digits."""
        return f"{self._crc:08x}"


def checksum_of(content: np.ndarray) -> str:
    """The checksum of contiguous bytes, as uint8."""
    checksum = Checksum()
    for begin in range(0, content.nbytes, PIECE):
        checksum.add(content[begin : begin + PIECE])
    return checksum.text()
