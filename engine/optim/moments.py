"""Running averages in place, rounded as PyTorch rounds them."""

from typing import Any

import numpy as np


def lerp_(average: Any, value: Any, weight: float) -> None:
    """average += weight (value - average), in the form that is exact at the nearer end (torch.lerp)."""
    difference = value - average
    if weight < 0.5:
        difference *= weight
        average += difference
    else:
        difference *= 1 - weight
        np.subtract(value, difference, out=average)


def track_square_(average: Any, value: Any, beta: float) -> None:
    """average = beta average + (1 - beta) value²."""
    square = value * (1 - beta)
    square *= value
    average *= beta
    average += square


def norm(values: Any) -> Any:
    """The Euclidean norm of an array, where the array is, at least in float32: the same on any number of threads."""
    wide = values if values.itemsize >= 4 else values.astype(np.float32)
    return np.sqrt(np.square(wide).sum())


def ratio(above: Any, below: Any) -> Any:
    """above / below, 1 where one of them is not above 0."""
    usable = (above > 0) & (below > 0)
    return np.where(usable, above, 1) / np.where(usable, below, 1)
