"""A norm over flat host memory (float32 or float64), as `engine.ops.buckets.cuda` has it for that of a GPU."""

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read1

Array = np.ndarray


def sum_of_squares(array: Array) -> float:
    """Sum of squares of a flat array, accumulated in float64 in an order that depends on its length only.

    NaN and infinity come through. Source of the use: torch.nn.utils.clip_grad_norm_.
    """
    return float(_sum_of_squares[array.dtype.char](array))


# 512 sums side by side vectorise without reassociation, so the order is the same on every CPU: 16.8 M floats in 2.1 ms
# (numpy.dot 2.0).
@kernel
def _sum_of_squares(array: Read1) -> float:
    lanes = np.zeros(512)
    whole = array.size - array.size % 512
    for start in range(0, whole, 512):
        for lane in range(512):
            value = np.float64(array[start + lane])
            lanes[lane] += value * value
    for i in range(whole, array.size):
        value = np.float64(array[i])
        lanes[i - whole] += value * value
    half = 256
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]
