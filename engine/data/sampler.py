"""Samplers: in which order a `DataLoader` takes the samples, and how they become batches.

Their `state_dict` is where the iteration begun last has come to; after `load_state_dict` the next one goes on there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, TypeGuard, TypeVar

import engine

Index_co = TypeVar("Index_co", covariant=True)


class Sampler(Iterable[Index_co]):
    """An iterable of indices (or of lists of indices, for batches), with a length if that is known."""

    def __iter__(self) -> Iterator[Index_co]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__.")


class _PlacedSampler(Sampler):
    """A sampler that can go on in the middle of an order, which it draws from a generator or a seed of its own."""

    generator: Any = None

    def __init__(self) -> None:
        # What the order of the last iteration was drawn from, and how much of it was yielded.
        self._place: dict[str, Any] = {"drawn_from": None, "yielded": 0}
        self._goes_on = False

    def _draw(self, generator: Any) -> Iterable[int]:
        """The order, from its start."""
        raise NotImplementedError

    def _source(self) -> int | bytes | None:
        """What a new order is drawn from: a seed, or the state of the generator."""
        return new_seed() if self.generator is None else self.generator.get_state().numpy().tobytes()

    def __iter__(self) -> Iterator[int]:
        if not self._goes_on:
            self._place = {"drawn_from": self._source(), "yielded": 0}
        self._goes_on, place = False, self._place
        for index in islice(self._draw(self._generator_of(place["drawn_from"])), place["yielded"], None):
            place["yielded"] += 1
            yield index

    def _generator_of(self, source: int | bytes | None) -> Any:
        if isinstance(source, int):
            return engine.Generator().manual_seed(source)
        if source is None:
            return None
        if self.generator is None:
            raise ValueError(
                f"{type(self).__name__}: the state is of a sampler with a generator, this one has none: give it one"
            )
        self.generator.set_state(engine.tensor(list(source), dtype=engine.uint8))
        return self.generator

    def state_dict(self) -> dict[str, Any]:
        """Where the last iteration is: a few bytes."""
        return dict(self._place)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration goes on there, in the same order. Draws the first part again, loads no sample of it."""
        self._place = {name: state_dict[name] for name in ("drawn_from", "yielded")}
        self._goes_on = self._place["yielded"] > 0 or self._place["drawn_from"] is not None


class SequentialSampler(_PlacedSampler):
    """0, 1, 2, ...."""

    def __init__(self, data_source: Sized) -> None:
        super().__init__()
        self.data_source = data_source

    def _source(self) -> None:
        return None

    def _draw(self, generator: Any) -> Iterable[int]:
        return range(len(self.data_source))

    def __len__(self) -> int:
        return len(self.data_source)


def has_state(sampler: Any) -> TypeGuard[Any]:
    """Whether it has a place that can be saved and loaded."""
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def new_seed(generator: Any = None) -> int:
    """A seed drawn from `generator`, or from the default one."""
    return int(engine.empty((), dtype=engine.int64).random_(generator=generator).item())


class RandomSampler(_PlacedSampler):
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
        super().__init__()
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator

    @property
    def num_samples(self) -> int:
        """How many indices an epoch has."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def _draw(self, generator: Any) -> Iterator[int]:
        size = len(self.data_source)
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


class SubsetRandomSampler(_PlacedSampler):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        super().__init__()
        self.indices = indices
        self.generator = generator

    def _draw(self, generator: Any) -> Iterator[int]:
        for position in engine.randperm(len(self.indices), generator=generator).tolist():
            yield self.indices[position]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_PlacedSampler):
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
        super().__init__()
        self.weights = engine.as_tensor(weights, dtype=engine.float64)
        if self.weights.dim() != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def _draw(self, generator: Any) -> list[int]:
        drawn: list[int] = engine.multinomial(
            self.weights, self.num_samples, self.replacement, generator=generator
        ).tolist()
        return drawn

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
        self._yielded = 0
        self._goes_on = False

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        if not self._goes_on:
            self._yielded = 0
        elif not has_state(self.sampler):
            indices = islice(indices, self._yielded, None)
        self._goes_on = False
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            self._yielded += len(batch)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The sampler's state; of one without, how many of its indices were yielded, which are left out then."""
        return {"sampler": self.sampler.state_dict()} if has_state(self.sampler) else {"yielded": self._yielded}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration goes on there; batches may be of another size from then on."""
        if has_state(self.sampler):
            self.sampler.load_state_dict(state_dict["sampler"])
        else:
            self._yielded, self._goes_on = int(state_dict["yielded"]), True

    def __len__(self) -> int:
        size = len(self.sampler)  # type: ignore[arg-type]
        return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
