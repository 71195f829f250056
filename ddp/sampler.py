"""DistributedSampler: which samples of a dataset belong to which rank."""

import math
from collections.abc import Iterator, Sized
from typing import Any

import numpy as np

from ddp.bootstrap import default_world


class DistributedSampler:
    """Iterates over this rank's share of the indices of `dataset`: rank, rank + num_replicas, ... of a common order.

    The common order is 0, 1, ..., or, with `shuffle`, a permutation drawn from `seed` and the epoch, the same on every
    rank; call `set_epoch` before each epoch, else every epoch has the same order. All ranks get equally many samples:
    the order is cut at the end with `drop_last`, otherwise filled up by repeating it from the start.

    num_replicas, rank: default to those of the default process group.
    Raises ValueError on every rank when there is no such group, when `rank` is not below `num_replicas`, or when there
    would be no samples: an empty dataset, or one smaller than the world with `drop_last`.
    Source: torch.utils.data.distributed.DistributedSampler; the permutation itself is NumPy's.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        num_replicas = default_world().size if num_replicas is None else num_replicas
        rank = default_world().rank if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        count = len(dataset)
        if count == 0 or (drop_last and count < num_replicas):
            raise ValueError(
                f"DistributedSampler: no samples for any rank: the dataset has {count}, there are {num_replicas} ranks "
                f"and drop_last is {drop_last}; use fewer ranks, or drop_last=False with a dataset that is not empty"
            )
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        self.num_samples = count // num_replicas if drop_last else math.ceil(count / num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        order = np.random.default_rng(self.seed + self.epoch).permutation(count) if self.shuffle else np.arange(count)
        # np.resize cuts, or repeats from the start as often as it takes.
        mine: list[Any] = np.resize(order, self.total_size)[self.rank :: self.num_replicas].tolist()
        return iter(mine)

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Another epoch, another order: must be the same number on every rank."""
        self.epoch = epoch
