"""Samplers: which samples of a dataset belong to which rank.

The common order of an epoch depends on seed and epoch alone, not on the number of ranks: with as many samples a step,
all ranks together, any number of ranks trains on the same samples in every step.
"""

import math
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np

from ddp.world.bootstrap import default_world


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
        self._skipped = 0
        self._yielded = 0  # by the iteration begun last, to this rank
        self._goes_on = False  # in the midst of an epoch, by a loaded state
        self._ended = False  # that epoch is over

    def __iter__(self) -> Iterator[int]:
        if self._ended:
            self._skipped, self._ended = 0, False
        # np.resize cuts, or repeats from the start as often as it takes.
        whole = np.resize(self._order(), self._end())
        mine: list[Any] = whole[self._skipped :][self.rank :: self.num_replicas].tolist()
        self._yielded = 0
        return self._counted(mine)

    def _counted(self, indices: list[Any]) -> Iterator[int]:
        for index in indices:
            self._yielded += 1
            yield index
        self._ended, self._goes_on = self._goes_on, False

    def __len__(self) -> int:
        return len(range(self._skipped + self.rank, self._end(), self.num_replicas))

    def _end(self) -> int:
        """Where the epoch ends in the common order, so that all ranks have equally many of what is left."""
        left = len(self.dataset) - self._skipped
        each = left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)
        return self._skipped + each * self.num_replicas

    def _order(self) -> np.ndarray:
        """The common order of this epoch, every index once."""
        count = len(self.dataset)
        return np.random.default_rng(self.seed + self.epoch).permutation(count) if self.shuffle else np.arange(count)

    def set_epoch(self, epoch: int) -> None:
        """Another epoch, another order, from its start: must be the same number on every rank.

        After `load_state_dict` the epoch that goes on is that of the state, if this is its number.
        """
        if not self._goes_on or epoch != self.epoch:
            self._skipped = self._yielded = 0
            self._goes_on = self._ended = False
        self.epoch = epoch

    def skip(self, samples: int) -> None:
        """Goes on with this epoch after the first `samples` of the common order; alike on every rank.

        For a run that continues from a checkpoint: `samples` is what all ranks together had seen of the epoch, steps
        times batch size times the number of ranks that there were then; now there may be another number. No sample is
        loaded to be thrown away. Call it after `set_epoch`, which starts at the beginning.
        Raises ValueError for a negative number.
        """
        if samples < 0:
            raise ValueError(f"skip: expected the number of samples that were seen, got {samples}")
        self._skipped, self._yielded = min(samples, len(self.dataset)), 0

    def state_dict(self) -> dict[str, Any]:
        """How much of which order all ranks have taken, by what this one has; another number of ranks can go on there.

        The same on every rank that has taken as many; a DataLoader has it as of the batch given out last.
        """
        seen = self._skipped + self._yielded * self.num_replicas
        at_end = 0 < self._yielded == len(self)  # and some ranks may have one less
        return {
            "epoch": self.epoch,
            "seen": len(self.dataset) if at_end else min(seen, len(self.dataset)),
            "seed": self.seed,
            "shuffle": self.shuffle,
            "samples": len(self.dataset),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on there: the next iteration has this rank's share of what is left of that epoch's order.

        The one after that has the whole epoch, as ever.
        Raises ValueError where the order would be another one: shuffled or not, a dataset of another length.
        """
        for name, own in (("shuffle", self.shuffle), ("samples", len(self.dataset))):
            if state_dict[name] != own:
                raise ValueError(
                    f"DistributedSampler: the state is of one with {name} {state_dict[name]}, this one has {own}; "
                    "samples that are left are known for the same dataset and the same order alone"
                )
        self.epoch, self.seed = int(state_dict["epoch"]), int(state_dict["seed"])
        self._skipped, self._yielded = int(state_dict["seen"]), 0
        self._goes_on, self._ended = self._skipped > 0, False


class UnrepeatedDistributedSampler(DistributedSampler):
    """Every index of `dataset` on exactly one rank: for evaluation, where a sample counted twice makes a wrong number.

    No index is repeated to make the shares equal, so ranks may get one sample more or less, or none; sum counts over
    the ranks, not means:

        for x, y in DataLoader(test_set, 64, sampler=UnrepeatedDistributedSampler(test_set, shuffle=False)):
            counts += engine.tensor([(model(x).argmax(1) == y).sum().item(), len(y)])
        ddp.all_reduce(counts)

    Evaluate the module itself (`net.module`), not a DistributedDataParallel in training mode, whose forward may expect
    all ranks. Arguments as `DistributedSampler`, without `drop_last`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed)
        self.total_size = len(dataset)
        self.num_samples = len(self)

    def _end(self) -> int:
        return len(self.dataset)
