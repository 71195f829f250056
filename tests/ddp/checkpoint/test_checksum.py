"""The checksum of a checkpoint's bytes sees what goes wrong with bytes."""

import zlib

import numpy as np
import pytest

from ddp.checkpoint.checksum import PART, PIECE, Checksum, checksum_of

SIZES = (1, 7, 8, 4072, 4096, 5000, PIECE, PIECE + 4096, 2 * PIECE + 3)


def by_numpy(content: np.ndarray) -> str:
    """What files hold: of each piece the sums of the columns of 509 words, and the bytes that fill no row."""
    crc = 0
    for begin in range(0, content.nbytes, PIECE):
        piece = content[begin : begin + PIECE]
        whole = piece.nbytes // 4072 * 4072
        words = piece[:whole].copy().view(np.uint64).reshape(-1, 509)
        crc = zlib.crc32(piece[whole:].tobytes(), zlib.crc32(words.sum(axis=0, dtype=np.uint64).tobytes(), crc))
    return f"{crc:08x}"


@pytest.mark.parametrize("size", [0, *SIZES, 4072 * 7, PART, PART + 1, PART + 4072, PIECE - 8, PIECE + PART])
@pytest.mark.parametrize("start", [0, 1, 8])
def test_it_is_the_same_however_the_bytes_come(size, start) -> None:
    content = np.random.default_rng(size).integers(0, 256, size + start, np.uint8)[start:]
    parts = Checksum()
    for begin in range(0, size, PART):
        parts.add(content[begin : begin + PART])
    assert parts.text() == checksum_of(content) == by_numpy(content)
    assert parts.text() == parts.text()


@pytest.mark.parametrize("size", SIZES)
def test_a_flipped_bit_changes_it(size) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    before = checksum_of(content)
    assert checksum_of(content.copy()) == before
    for place in {0, size // 2, size - 1}:
        changed = content.copy()
        changed[place] ^= 4
        assert checksum_of(changed) != before


def test_sectors_that_change_places_or_vanish_change_it() -> None:
    content = np.random.default_rng(0).integers(0, 256, 2 * PIECE, np.uint8)
    before = checksum_of(content)
    for one, other in ((0, 4096), (512, 1024), (4096, PIECE + 4096 - PIECE % 512), (0, 509 * 8)):
        changed = content.copy()
        changed[one : one + 512], changed[other : other + 512] = (
            content[other : other + 512],
            content[one : one + 512],
        )
        # A row of 509 words that changes places with another one is the one thing that is not seen: no sector is one.
        assert (checksum_of(changed) == before) == (other == 509 * 8)
        changed = content.copy()
        changed[one : one + 512] = 0
        assert checksum_of(changed) != before
