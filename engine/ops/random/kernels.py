"""Dropout's pass over memory."""

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read1, ReadUint8, Write1, real
from engine.sharing import threads

Array = np.ndarray


def masked_scale(x: Array, mask: Array, scale: float) -> Array:
    """``x * mask * scale`` of C-contiguous arrays of one shape, float32 or float64 and bool: the bits of two passes of
    NumPy's. 16,384 elements: 3.1 µs, NumPy 6.2.
    """
    out = np.empty(x.shape, x.dtype)
    run = _masked_scale[x.dtype.char]
    flat = x.reshape(-1), mask.reshape(-1).view(np.uint8), out.reshape(-1)
    if x.size < threads.WORTH:  # without slices
        run(*flat, scale)
    else:
        threads.in_pieces(lambda part: run(*[each[part] for each in flat], scale), x.size, x.size)
    return out


@kernel
def _masked_scale(x: Read1, mask: ReadUint8, out: Write1, scale: float) -> None:
    factor = real(scale)
    for i in range(x.size):
        out[i] = x[i] * real(mask[i]) * factor
