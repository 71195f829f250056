"""Fetching: from indices to a collated batch, in this process or in a worker."""

from collections.abc import Callable, Iterator
from typing import Any

import engine
from engine.data.collate import default_collate
from engine.data.dataset import IterableDataset, Subset, TensorDataset
from engine.data.seeding import SeededIndices, seed_everything


class Fetcher:
    """Turns what the sampler yields into data: `fetch(indices)`. Raises StopIteration when an iterable dataset is
    exhausted.

    Args: batched: whether `fetch` gets lists of indices and collates, or single ones and converts.
    """

    def __init__(self, dataset: Any, batched: bool, collate_fn: Callable[[Any], Any], drop_last: bool) -> None:
        self.dataset = dataset
        self.batched = batched
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        self.samples: Iterator[Any] | None = iter(dataset) if isinstance(dataset, IterableDataset) else None

    def fetch(self, indices: Any) -> Any:
        """The batch (or sample) at `indices`; for iterable datasets the next one of that size."""
        if type(indices) is SeededIndices:
            seed_everything(indices.seed)
        if self.samples is not None:
            return self._next(len(indices) if self.batched else None)
        if not self.batched:
            return self.collate_fn(self.dataset[indices])
        if self.collate_fn is default_collate:
            batch = _rows(self.dataset, indices)
            if batch is not None:
                return batch
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self.collate_fn(self.dataset.__getitems__(indices))
        return self.collate_fn([self.dataset[index] for index in indices])

    def _next(self, size: int | None) -> Any:
        assert self.samples is not None
        if size is None:
            return self.collate_fn(next(self.samples))
        batch = []
        for sample in self.samples:
            batch.append(sample)
            if len(batch) == size:
                break
        if not batch or (self.drop_last and len(batch) < size):
            raise StopIteration
        return self.collate_fn(batch)


def _rows(dataset: Any, indices: Any) -> list[Any] | None:
    """What default collation of a TensorDataset (or a Subset of one) gives, taken from each tensor at once; None for
    others.

    A batch of 64 digits and labels takes 0.02 ms this way and 0.5 ms sample by sample.
    """
    while type(dataset) is Subset:
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    if type(dataset) is not TensorDataset or not all(type(index) is int for index in indices):
        return None
    size = len(dataset)
    if not all(-size <= index < size for index in indices):
        return None
    rows = engine.tensor([index % size for index in indices], dtype=engine.int64)
    if not all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in dataset.tensors):
        return None
    return [tensor.index_select(0, rows) for tensor in dataset.tensors]
