"""`ShardSampler`: which samples belong to which shard of which step."""

from collections.abc import Iterator, Mapping, Sized
from itertools import count
from typing import TYPE_CHECKING, Any

from ddp.job.streams import data_stream
from ddp.training.sampler import DistributedSampler
from engine.data.seeding import SeededIndices

if TYPE_CHECKING:
    from ddp.job.job import Job


class ShardSampler:
    """Batches of indices for the shards that this rank carries, from the job's step on and without end.

        DataLoader(dataset, batch_sampler=ddp.ShardSampler(dataset, batch_size, job))

    A global batch is the next `batch_size` of an epoch's order, and shard s has its samples s, s + S, ...; what does
    not fill a global batch at the end of an epoch is left out. So the step alone says where in which epoch a job is.
    What is drawn while samples are fetched (augmentation), by worker processes or here, is a function of (seed, step,
    shard), too.

    batch_size: samples in one step, of all shards together. shuffle: a new order in each epoch, drawn from the job's
    seed and the epoch. `len` is the number of steps in an epoch.
    Raises ValueError unless batch_size is a multiple of the number of shards, and at most the length of the dataset.
    """

    def __init__(self, dataset: Sized, batch_size: int, job: "Job", shuffle: bool = True) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.job = job
        self.shuffle = shuffle
        self._check()

    def _check(self) -> None:
        if self.batch_size < 1 or self.batch_size % self.job.num_shards:
            raise ValueError(
                f"ShardSampler: batch_size {self.batch_size} does not divide over {self.job.num_shards} shards: give a "
                f"multiple of {self.job.num_shards}"
            )
        if self.batch_size > len(self.dataset):
            raise ValueError(
                f"ShardSampler: batch_size {self.batch_size} is more than the dataset has, {len(self.dataset)}"
            )

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def state_dict(self) -> dict[str, Any]:
        """What decides the order beside the job, whose step is the place in it: the job is to be saved, too."""
        return {"batch_size": self.batch_size, "shuffle": self.shuffle, "samples": len(self.dataset)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raises ValueError where steps would have other samples from now on."""
        own = self.state_dict()
        for name, value in own.items():
            if state_dict[name] != value:
                raise ValueError(
                    f"ShardSampler: the state is of one with {name} {state_dict[name]}, this one has {value}: the "
                    "steps left would have other samples"
                )

    def __iter__(self) -> Iterator[SeededIndices]:
        self._check()  # a state with another number of shards may have been loaded
        job, epoch, order = self.job, -1, []
        shards, seed = job.num_shards, job.seed
        sampler = DistributedSampler(self.dataset, 1, 0, self.shuffle, seed)
        for step in count(job.step):
            if step // len(self) != epoch:
                epoch = step // len(self)
                sampler.set_epoch(epoch)
                order = list(sampler)
            begin = step % len(self) * self.batch_size
            batch = order[begin : begin + self.batch_size]
            for shard in job.carried:
                yield SeededIndices(batch[shard::shards], data_stream(seed, step, shard))
