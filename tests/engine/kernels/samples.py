"""Arrays for kernel tests: random ones of any dtype, and the same values at another alignment."""

import numpy as np

DTYPES = ("float32", "float64")
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}


def normal(shape, dtype, seed=0, scale=1.0):
    """Standard normal numbers times ``scale``."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def shifted(array, elements):
    """A C-contiguous copy that begins ``elements`` items after a 64-byte boundary."""
    itemsize = array.itemsize
    memory = np.empty(array.nbytes + 128 + elements * itemsize, np.uint8)
    begin = -memory.ctypes.data % 64 + elements * itemsize
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert array.size == 0 or copy.ctypes.data % 64 == elements * itemsize % 64
    return copy


def close(actual, expected, dtype, factor=1.0, magnitude=0.0):
    """Assert equality within the dtype's tolerance, relative to ``magnitude`` or the largest expected one."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    magnitude = max(magnitude, float(np.max(np.abs(expected), initial=0.0))) or 1.0
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE[dtype] * factor * magnitude)
