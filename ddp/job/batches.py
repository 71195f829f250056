"""Where a job is in its batches: an iteration that goes on from step to step, and begins anew where a step did."""

from collections.abc import Iterable, Iterator
from typing import Any

_NONE = object()


class Position:
    """An iteration over batches that goes on from step to step."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self.step: int | None = None  # the one whose first batch is next
        self._shards = range(0)
        self._iterator: Iterator[Any] | None = None

    def seek(self, step: int, shards: range) -> None:
        """The next batch is to be the first of `shards` in this step."""
        if self._iterator is None or self.step != step or self._shards != shards:
            self._iterator, self._shards = iter(self.batches), shards
        self.step = None  # in the middle of a step

    def next(self) -> Any:
        """The next batch. RuntimeError where there is none."""
        assert self._iterator is not None
        found = next(self._iterator, _NONE)
        if found is _NONE:
            raise RuntimeError(
                "Job.shards: there are no more batches; iterate over a DataLoader with batch_sampler=ddp.ShardSampler, "
                "which goes on from epoch to epoch"
            )
        return found
