"""Data sets, samplers and loaders of `engine.data`, a function each.

    python examples/data.py

Names and arguments are PyTorch's. How a loader is used over several ranks shows examples/digits.py.
"""

from collections.abc import Iterator

import engine
from engine.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DevicePrefetcher,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)


class Squares(Dataset):
    """Samples by index; what __getitem__ returns is put together to batches."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, float]:
        return {"x": float(index), "y": float(index**2)}


class Counting(IterableDataset):
    """Samples in order, as of a stream; each worker takes its share."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()  # None in the main process
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(range(first, 8, every))


def batches() -> None:
    """A loader asks a data set for samples, shuffled or not, and gives batches; processes help with num_workers."""
    first = next(iter(DataLoader(Squares(), batch_size=4)))
    assert first["y"].tolist() == [0.0, 1.0, 4.0, 9.0]
    shuffled = DataLoader(Squares(), batch_size=4, shuffle=True, drop_last=True, generator=engine.Generator())
    assert [len(batch["x"]) for batch in shuffled] == [4, 4]
    from_workers = DataLoader(Counting(), batch_size=2, num_workers=2)
    assert sorted(number for batch in from_workers for number in batch.tolist()) == list(range(8))


def made_of_others() -> None:
    """Tensors, parts, sums and tuples of data sets."""
    pairs = TensorDataset(engine.arange(6), engine.arange(6) * 10)
    assert [each.item() for each in pairs[2]] == [2, 20]
    train, test = random_split(pairs, [4, 2])
    assert len(ConcatDataset([train, test])) == 6
    assert len(Subset(pairs, [0, 2])) == 2
    assert StackDataset(number=[1, 2], square=[1, 4])[1] == {"number": 2, "square": 4}
    assert list(ChainDataset([Counting(), Counting()])) == [*range(8)] * 2


def which_samples() -> None:
    """A sampler gives indices, a batch sampler lists of them."""
    assert list(SequentialSampler(Squares())) == list(range(10))
    assert sorted(RandomSampler(Squares())) == list(range(10))
    assert sorted(SubsetRandomSampler([3, 5, 7])) == [3, 5, 7]
    assert set(WeightedRandomSampler([0.0, 1.0, 0.0], num_samples=5)) == {1}
    by_two = BatchSampler(SequentialSampler(range(5)), batch_size=2, drop_last=False)
    assert list(by_two) == [[0, 1], [2, 3], [4]]
    assert len(list(DataLoader(Squares(), batch_sampler=by_two))) == 3


def collating() -> None:
    """How samples become a batch: by default stacked, leaf by leaf; or by a function of one's own."""
    assert default_collate([(1, 2.0), (3, 4.0)])[0].tolist() == [1, 3]
    assert default_convert([1, "a"]) == [1, "a"]
    loader = DataLoader([[1], [2, 3]], batch_size=2, collate_fn=lambda samples: [*samples[0], *samples[1]])
    assert list(loader) == [[1, 2, 3]]


def to_a_gpu() -> None:
    """Where there is one: batches in page-locked memory, and the next on its way there while one is worked on."""
    if engine.cuda.is_available():
        loader = DataLoader(Squares(), batch_size=4, pin_memory=True)
        assert all(batch["x"].is_cuda for batch in DevicePrefetcher(loader, "cuda"))


def main() -> None:
    engine.manual_seed(0)
    for example in (batches, made_of_others, which_samples, collating, to_a_gpu):
        example()
        print(f"{example.__name__}: {example.__doc__}")


if __name__ == "__main__":
    main()
