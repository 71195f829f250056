"""What the tests of kernels share: arrays on the device and back, and how close a result must be."""

from typing import Any

import ml_dtypes
import numpy as np

from engine.memory import backend

Array = Any

# dtype and rounding error of one operation
KINDS = {
    "float32": (np.dtype("f"), 1.2e-7),
    "float64": (np.dtype("d"), 2.3e-16),
    "float16": (np.dtype("e"), 9.8e-4),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 7.9e-3),
}


def there(array: Any) -> Array:
    """The array on the device; None stays None."""
    return None if array is None else backend.require_cupy().asarray(np.ascontiguousarray(array))


def here(array: Array) -> np.ndarray:
    """The device array in float64."""
    return array.get().astype(np.float64)


def drawn(seed: int, shape: tuple[int, ...], kind: str, scale: float = 1.0, offset: float = 0.0) -> np.ndarray:
    """Normal numbers of a kind of KINDS."""
    return (np.random.default_rng(seed).normal(size=shape) * scale + offset).astype(KINDS[kind][0])


def close(found: Array, expected: Any, kind: str, factor: float = 8.0) -> None:
    """Equal but for `factor` rounding errors, relative to the element or, if that is larger, to 1; NaN in the same
    places.
    """
    assert tuple(found.shape) == np.shape(expected)
    tolerance = factor * KINDS[kind][1]
    np.testing.assert_allclose(here(found), expected, rtol=tolerance, atol=tolerance)
