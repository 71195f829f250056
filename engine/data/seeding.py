"""Seeding every source of random numbers that samples are drawn or changed with: Python's, NumPy's, the engine's."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np

import engine


def seed_everything(seed: int) -> None:
    """Starts all of them anew in this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    engine.manual_seed(seed)


class SeededIndices(list[Any]):
    """Indices of a batch that say how to seed whoever fetches them, so that what is drawn depends on no other batch."""

    def __init__(self, indices: Iterable[Any], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed
