"""The Reducer of a job: each shard that this rank carries has one backward, and the last one's is summed.

See `ddp.job`, and the transport's `shards` for how they add up to the same bits on any number of ranks.
"""

from typing import Any

from ddp.gradients.reducer import Reducer
from ddp.gradients.stage import Stage


class ReducerOfShards(Reducer):
    """A Reducer whose sums are made of `shards`, on all ranks together; arguments as there."""

    def __init__(self, *arguments: Any, shards: int, **options: Any) -> None:
        super().__init__(*arguments, shards=shards, **options)
        self._owed = 0  # backward passes until the step's gradients are summed
        self._may_begin = False  # `begin_shard` was called

    def begin_shard(self, place: int, count: int) -> None:
        """The next backward is that of the shard at this place of those that this rank carries; gradients are dropped.

        RuntimeError where that of the one before was missing, or failed. Where a step was left in the middle, that is
        told to the ranks that wait for it.
        """
        if place:
            self.check_shard(place, count)
            if self.failed:
                raise RuntimeError(
                    "DistributedDataParallel: an exception ended the backward of an earlier shard of this step; leave "
                    "the loop over job.shards(), too"
                )
        else:
            self._leave_step()
            for bucket in self.buckets.all:
                bucket.restart()
            self._owed = count
        self.last_shard = place == count - 1
        self.first_shard = place == 0
        self._may_begin = True
        for parameter in self.parameters:
            parameter.grad = None

    def check_shard(self, place: int, count: int) -> None:
        """The body of this many shards of this rank is over. RuntimeError unless all of them had their backward."""
        if not self.failed and self._owed != count - place:
            raise RuntimeError(
                "DistributedDataParallel: a shard had no backward outside of no_sync(), so its gradients are missing; "
                "run one for each, on a loss of 0 if need be (job.shards)"
            )

    def _leave_step(self) -> None:
        """Collective with the backward of the ranks that wait for this one, if its step did not come to an end."""
        if self._owed and not self.failed:
            for bucket in self.buckets.all:
                bucket.enter(Stage.FILLING)
            self.last_shard = True
            self.give_up()
        if self.failed:
            self.recover()
        self._owed = 0

    def begin(self) -> None:
        if not self.failed:
            if not self._may_begin:
                raise RuntimeError(
                    "DistributedDataParallel: with a job, each shard has one backward outside of no_sync, inside of "
                    "`for ... in job.shards(...)`; this is another one"
                )
            self._may_begin = False
        super().begin()

    def collect(self) -> str | None:
        failure = super().collect()
        if self._owed:
            self._owed -= 1
        return failure

    def recover(self) -> None:
        super().recover()
        self._owed = 0
