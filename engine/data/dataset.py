"""Datasets: samples by index (`Dataset`) or one after another (`IterableDataset`), and how to combine them."""

import math
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

import engine
from engine.tensor import Tensor

Sample_co = TypeVar("Sample_co", covariant=True)


class Dataset(Generic[Sample_co]):
    """Samples by index: subclasses define `__getitem__`, mostly `__len__`, `__getitems__(indices)` if it is faster.

    `Dataset[Sample]` says for type checkers what a sample is.
    """

    def __getitem__(self, index: Any) -> Sample_co:
        raise NotImplementedError(f"{type(self).__name__} must implement __getitem__.")

    def __add__(self, other: "Dataset[Any]") -> "ConcatDataset":
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Sample_co], Iterable[Sample_co]):
    """Samples one after another: subclasses define `__iter__`. Each worker has its own copy; see `get_worker_info`."""

    def __iter__(self) -> Iterator[Sample_co]:
        raise NotImplementedError(f"{type(self).__name__} must implement __iter__.")

    def __add__(self, other: Dataset[Any]) -> "ChainDataset":  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is the tuple of row i of every tensor. Raises AssertionError if their first sizes differ."""

    def __init__(self, *tensors: Tensor) -> None:
        if any(tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise AssertionError(f"Size mismatch between tensors: {[tuple(tensor.shape) for tensor in tensors]}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class StackDataset(Dataset):
    """Sample i is a tuple (or dict) of sample i of every dataset. Raises ValueError unless all are equally long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError(
                "Supported either ``tuple``- (via ``args``) or ``dict``- (via ``kwargs``) like input/output, one "
                "of them"
            )
        self.datasets: Any = args or kwargs
        sizes = {len(dataset) for dataset in (args or kwargs.values())}
        if len(sizes) != 1:
            raise ValueError(f"Size mismatch between datasets: {sorted(sizes)}")
        self._length = sizes.pop()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset):
    """One dataset after another. Raises ValueError for none, AssertionError for one without indices."""

    datasets: list[Any]
    cumulative_sizes: list[int]

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(dataset, IterableDataset) for dataset in self.datasets):
            raise AssertionError("ConcatDataset does not support IterableDataset")
        self.cumulative_sizes = list(accumulate(len(dataset) for dataset in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            if -index > len(self):
                raise ValueError("absolute value of index should not exceed dataset length")
            index += len(self)
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset):
    """One iterable dataset after another."""

    def __init__(self, datasets: Iterable[Dataset]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise AssertionError("ChainDataset only supports IterableDataset")
            yield from dataset

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)  # type: ignore[arg-type, misc]


class Subset(Dataset):
    """The samples of a dataset at the given indices."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[each] for each in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        chosen = [self.indices[index] for index in indices]
        if callable(getattr(self.dataset, "__getitems__", None)):
            return self.dataset.__getitems__(chosen)
        return [self.dataset[index] for index in chosen]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Any = None) -> list[Subset]:
    """Splits a dataset at random into parts of the given lengths, or of the given fractions of its length.

    What fractions leave over goes to the parts in turn. Raises: ValueError if the lengths do not add up.
    """
    size = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        for number, fraction in enumerate(lengths):
            if not 0 <= fraction <= 1:
                raise ValueError(f"Fraction at index {number} is not between 0 and 1")
        parts = [math.floor(size * fraction) for fraction in lengths]
        for number in range(size - sum(parts)):
            parts[number % len(parts)] += 1
        for number, part in enumerate(parts):
            if part == 0:
                warnings.warn(
                    f"Length of split at index {number} is 0. This might result in an empty dataset.", stacklevel=2
                )
        lengths = parts
    if sum(lengths) != size:
        raise ValueError(
            f"Sum of input lengths does not equal the length of the input dataset! Got {sum(lengths)}, expected {size}"
        )
    order = engine.randperm(size, generator=generator).tolist()
    ends = list(accumulate(int(length) for length in lengths))
    return [Subset(dataset, order[end - int(length) : end]) for end, length in zip(ends, lengths, strict=True)]
