"""Samplers: in which order a `DataLoader` takes the samples, and how they become batches."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

import engine

Index_co = TypeVar("Index_co", covariant=True)


class Sampler(Iterable[Index_co]):
    """An iterable of indices (or of lists of indices, for batches), with a length if that is known."""

    def __iter__(self) -> Iterator[Index_co]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__.")


class SequentialSampler(Sampler):
    """0, 1, 2, ...."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


def new_seed(generator: Any = None) -> int:
    """A seed drawn from `generator`, or from the default one."""
    return int(engine.empty((), dtype=engine.int64).random_(generator=generator).item())


class RandomSampler(Sampler):
    """A permutation of the indices, or `num_samples` of them; with `replacement` each drawn anew.

    Raises: TypeError or ValueError for arguments of the wrong kind.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if num_samples is not None and (not isinstance(num_samples, int) or num_samples < 0):
            raise ValueError(f"num_samples should be a non-negative integer value, but got num_samples={num_samples}")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator

    @property
    def num_samples(self) -> int:
        """How many indices an epoch has."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        generator = self.generator
        if generator is None:
            generator = engine.Generator().manual_seed(new_seed())
        if self.replacement:
            # drawn in blocks, as PyTorch does, so that few indices cost little
            for start in range(0, self.num_samples, 32):
                count = min(32, self.num_samples - start)
                yield from engine.randint(0, size, (32,), generator=generator).tolist()[:count]
            return
        left = self.num_samples
        while left > 0 and size > 0:
            yield from islice(engine.randperm(size, generator=generator).tolist(), left)
            left -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for position in engine.randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[position]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """`num_samples` indices drawn with probabilities in proportion to `weights`.

    Raises: ValueError for num_samples that is no positive int or weights that are not one-dimensional; TypeError for a
    replacement that is no bool.
    """

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None
    ) -> None:
        if not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples <= 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={num_samples}")
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = engine.as_tensor(weights, dtype=engine.float64)
        if self.weights.dim() != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        drawn = engine.multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator)
        yield from iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` indices of another sampler; the last may be shorter unless `drop_last`.

    Raises: ValueError for a batch_size that is no positive int or a drop_last that is no bool.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
