"""Dropout's pass: the bits of NumPy's two, on any number of threads."""

import numpy as np
import pytest

from engine.ops.random import kernels
from engine.sharing import threads
from tests.engine.kernels.samples import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 17, 1000, 300_001])
def test_bits_of_two_passes(dtype: str, size: int) -> None:
    generator = np.random.default_rng(size)
    x, mask = generator.standard_normal(size).astype(dtype), generator.random(size) < 0.8
    x[:: max(size // 3, 1)] = np.inf
    number = threads.get_num_threads()
    with np.errstate(invalid="ignore"):
        expected = (x * mask) * x.dtype.type(1 / 0.8)
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            np.testing.assert_array_equal(kernels.masked_scale(x, mask, 1 / 0.8), expected)
    finally:
        threads.set_num_threads(number)
    shaped = kernels.masked_scale(x.reshape(1, -1), mask.reshape(1, -1), 1 / 0.8)
    assert shaped.shape == (1, size)
