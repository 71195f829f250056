"""What the ways to compute attention on the CPU share: how much is kept of it, and its work."""

import math

from engine.sharing import threads

KEPT_BYTES = 1 << 26
"""Probabilities up to this size are kept for backward; beyond, the log-sum-exp is, and they are computed again."""


def work(batch: tuple[int, ...], rows: int, keys: int, width: int) -> int:
    """As `engine.sharing.threads` counts it."""
    return math.prod(batch) * rows * keys * width // threads.PRODUCTS
