"""The checksum of a checkpoint's bytes sees what goes wrong with bytes."""

import numpy as np
import pytest

from ddp.checkpoint.checksum import PIECE, checksum_of

SIZES = (1, 7, 8, 4072, 4096, 5000, PIECE, PIECE + 4096, 2 * PIECE + 3)


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
