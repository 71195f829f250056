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
