"""Copies past the caches: every byte, whatever the alignment, and none beside."""

import numpy as np
import pytest

from engine.ops.copy import kernels as copy

MIB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, MIB + 63, MIB + 64, MIB + 4133])
@pytest.mark.parametrize("starts", [(0, 0), (1, 0), (0, 1), (63, 7), (32, 16)])
def test_every_byte_and_none_beside(size, starts):
    memory = np.random.default_rng(size).integers(0, 256, MIB + 8192, dtype=np.uint8)
    target = np.full(MIB + 8192, 7, np.uint8)
    begin, source = starts[0] - target.ctypes.data % 64 + 64, memory[starts[1] : starts[1] + size]
    before = source.copy()
    copy.copy_past_caches(target[begin : begin + size], source)
    assert np.array_equal(target[begin : begin + size], before)
    assert np.array_equal(source, before)
    assert (target[:begin] == 7).all()
    assert (target[begin + size :] == 7).all()


def test_as_few_as_asked_for_pass_the_caches_by():
    values = np.arange(300, dtype=np.uint8)
    copy.copy_past_caches(target := np.zeros(300, np.uint8), values, least=100)
    assert np.array_equal(target, values)
