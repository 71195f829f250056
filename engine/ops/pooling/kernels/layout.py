"""The two layouts that pooling works on as they lie, both C-contiguous: channels-last images (N, H, W, C), and planes
(P, H, W) with P = N * C.
"""

import numpy as np

Array = np.ndarray


def is_planes(image: Array) -> bool:
    """Whether the lines to work along are those of the image: one channel is the same memory in both layouts."""
    return image.ndim == 3 or image.shape[3] == 1


def laid_out(image: Array) -> Array:
    """Channels-last images of one channel as planes, others as they are."""
    return image.reshape(image.shape[:3]) if image.ndim == 4 and image.shape[3] == 1 else image
