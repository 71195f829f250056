"""What `GradScaler` does to raw arrays: look for infinities, unscale, adapt the scale."""

from typing import Any

import numpy as np

from engine.tensor import Tensor

Array = Any


def check(gradients: list[Tensor], scale: Array | None, found: Array) -> None:
    """Divides gradients by `scale` (float32, 0-dim; None leaves them) and sets `found` to 1 where a quotient is
    not finite. Everything is on one device.
    """
    if not isinstance(found, np.ndarray):
        from engine.amp import cuda as amp

        amp.check([(gradient._array, gradient._spec) for gradient in gradients], scale, found)
        return
    inverse = None if scale is None else np.float32(np.float64(1) / np.float64(scale[()]))
    for gradient in (tensor._array for tensor in gradients):
        if inverse is not None:
            np.multiply(gradient, inverse, out=gradient, casting="same_kind")
        if not _all_finite(gradient):
            found[()] = 1.0


def _all_finite(array: np.ndarray) -> bool:
    """A finite sum has finite terms, and takes one pass without memory; other sums may have overflowed by
    themselves.
    """
    if array.dtype.itemsize > 2 and np.isfinite(array.sum()):
        return True
    return bool(np.isfinite(array).all())


def update_scale(scale: Array, tracker: Array, found: Array, growth: float, backoff: float, interval: int) -> None:
    """After an overflow `scale` shrinks and `tracker` is 0; after `interval` good steps in a row it grows."""
    if not isinstance(scale, np.ndarray):
        from engine.amp import cuda as amp

        amp.update_scale(scale, tracker, found, growth, backoff, interval)
        return
    if found[()]:
        scale[()] *= np.float32(backoff)
        tracker[()] = 0
        return
    tracker[()] += 1
    if tracker[()] == interval:
        grown = scale[()] * np.float32(growth)
        if np.isfinite(grown):
            scale[()] = grown
        tracker[()] = 0
