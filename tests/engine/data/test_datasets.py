"""Datasets, samplers and collation."""

import collections
from typing import Any

import numpy as np
import pytest

import engine
from engine import data


class Squares(data.Dataset):
    """i -> i²."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return index**2

    def __len__(self) -> int:
        return self.size


def seeded(seed: int = 3) -> Any:
    return engine.Generator().manual_seed(seed)


def test_tensor_dataset() -> None:
    dataset = data.TensorDataset(engine.arange(6).view(3, 2), engine.tensor([7, 8, 9]))
    row, label = dataset[1]
    assert row.tolist() == [2, 3]
    assert label.item() == 8
    assert len(dataset) == 3
    with pytest.raises(AssertionError, match="Size mismatch"):
        data.TensorDataset(engine.ones(3), engine.ones(4))


def test_concat_and_subset() -> None:
    joined = Squares(3) + Squares(4)
    assert isinstance(joined, data.ConcatDataset)
    assert [joined[index] for index in range(7)] == [0, 1, 4, 0, 1, 4, 9]
    assert joined[-1] == 9
    assert joined.cumulative_sizes == [3, 7]
    with pytest.raises(ValueError, match="absolute value of index"):
        _ = joined[-8]
    with pytest.raises(ValueError, match="empty iterable"):
        data.ConcatDataset([])
    part = data.Subset(joined, [6, 0, 2])
    assert [part[0], part[1], part[2]] == [9, 0, 4]
    assert part.__getitems__([0, 2]) == [9, 4]
    assert len(part) == 3


def test_stack() -> None:
    assert data.StackDataset(Squares(3), Squares(3))[2] == (4, 4)
    assert data.StackDataset(a=Squares(3), b=Squares(3))[1] == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match="Size mismatch"):
        data.StackDataset(Squares(3), Squares(4))


def test_chained_iterables() -> None:
    class Range(data.IterableDataset):
        def __init__(self, *bounds: int) -> None:
            self.bounds = bounds

        def __iter__(self) -> Any:
            return iter(range(*self.bounds))

    assert list(Range(2) + Range(5, 8)) == [0, 1, 5, 6, 7]
    with pytest.raises(AssertionError, match="only supports IterableDataset"):
        list(data.ChainDataset([Squares(2)]))
    with pytest.raises(AssertionError, match="does not support IterableDataset"):
        data.ConcatDataset([Range(2)])


def test_random_split() -> None:
    parts = data.random_split(Squares(10), [3, 7], seeded())
    assert sorted(index for part in parts for index in part.indices) == list(range(10))
    assert [part.indices for part in data.random_split(Squares(10), [3, 7], seeded())] == [
        part.indices for part in parts
    ]
    assert [len(part) for part in data.random_split(Squares(10), [0.5, 0.25, 0.25])] == [6, 2, 2]
    with pytest.warns(UserWarning, match="index 1 is 0"):
        data.random_split(Squares(2), [1.0, 0.0])
    with pytest.raises(ValueError, match="does not equal the length"):
        data.random_split(Squares(10), [3, 6])


def test_sequential_and_random_samplers() -> None:
    assert list(data.SequentialSampler(range(4))) == [0, 1, 2, 3]
    order = list(data.RandomSampler(range(20), generator=seeded()))
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    assert list(data.RandomSampler(range(20), generator=seeded())) == order
    engine.manual_seed(1)
    first = list(data.RandomSampler(range(20)))
    engine.manual_seed(1)
    assert list(data.RandomSampler(range(20))) == first


def test_random_sampler_with_a_number_of_samples() -> None:
    assert len(list(data.RandomSampler(range(5), num_samples=13))) == 13
    drawn = list(data.RandomSampler(range(5), replacement=True, num_samples=70, generator=seeded()))
    assert len(drawn) == 70
    assert set(drawn) == set(range(5))
    assert len(data.RandomSampler(range(5), num_samples=13)) == 13
    with pytest.raises(ValueError, match="num_samples should be"):
        data.RandomSampler(range(5), num_samples=-1)
    with pytest.raises(TypeError, match="replacement should be"):
        data.RandomSampler(range(5), replacement="no")  # type: ignore[arg-type]


def test_subset_and_weighted_samplers() -> None:
    assert sorted(data.SubsetRandomSampler([4, 7, 9], seeded())) == [4, 7, 9]
    drawn = list(data.WeightedRandomSampler([0.0, 1.0, 3.0], 400, generator=seeded()))
    assert 0 not in drawn
    assert 2 < drawn.count(2) / drawn.count(1) < 4.5
    assert sorted(data.WeightedRandomSampler([1.0, 0.1, 2.0], 3, replacement=False)) == [0, 1, 2]
    with pytest.raises(ValueError, match="num_samples should be a positive"):
        data.WeightedRandomSampler([1.0], 0)
    with pytest.raises(ValueError, match="weights should be a 1d"):
        data.WeightedRandomSampler([[1.0]], 1)  # type: ignore[list-item]


def test_batch_sampler() -> None:
    batches = data.BatchSampler(data.SequentialSampler(range(7)), 3, drop_last=False)
    assert list(batches) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(batches) == 3
    batches = data.BatchSampler(data.SequentialSampler(range(7)), 3, drop_last=True)
    assert list(batches) == [[0, 1, 2], [3, 4, 5]]
    assert len(batches) == 2
    with pytest.raises(ValueError, match="batch_size should be"):
        data.BatchSampler([], 0, False)
    with pytest.raises(ValueError, match="drop_last should be"):
        data.BatchSampler([], 1, 1)  # type: ignore[arg-type]


Point = collections.namedtuple("Point", "x y")


def test_collation_of_every_kind() -> None:
    batch = data.default_collate([engine.ones(2), engine.zeros(2)])
    assert batch.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    batch = data.default_collate([np.ones(2, np.float32), np.zeros(2, np.float32)])
    assert batch.dtype is engine.float32
    assert batch.shape == (2, 2)
    assert data.default_collate([1.5, 2.5]).dtype is engine.float64
    assert data.default_collate([1, 2]).dtype is engine.int64
    assert data.default_collate([True, False]).dtype is engine.bool
    assert data.default_collate([np.float32(1), np.float32(2)]).dtype is engine.float32
    assert data.default_collate(["a", "b"]) == ["a", "b"]
    assert data.default_collate([b"a", b"b"]) == [b"a", b"b"]
    pairs = data.default_collate([(1, "a"), (2, "b")])
    assert pairs[0].tolist() == [1, 2]
    assert pairs[1] == ["a", "b"]
    nested = data.default_collate([{"a": 1, "b": [1.0, 2.0]}, {"a": 3, "b": [3.0, 4.0]}])
    assert nested["a"].tolist() == [1, 3]
    assert [each.tolist() for each in nested["b"]] == [[1.0, 3.0], [2.0, 4.0]]
    points = data.default_collate([Point(1, 2), Point(3, 4)])
    assert isinstance(points, Point)
    assert points.y.tolist() == [2, 4]
    ordered = data.default_collate([collections.OrderedDict(a=1), collections.OrderedDict(a=2)])
    assert isinstance(ordered, collections.OrderedDict)


def test_collation_errors() -> None:
    with pytest.raises(RuntimeError, match="of equal size"):
        data.default_collate([[1, 2], [3]])
    with pytest.raises(TypeError, match="must contain tensors, numpy arrays"):
        data.default_collate([object(), object()])
    with pytest.raises(TypeError, match="must contain tensors, numpy arrays"):
        data.default_collate([np.array(["a"]), np.array(["b"])])


def test_conversion() -> None:
    converted = data.default_convert({"a": np.ones(2), "b": (1, np.float32(2)), "c": "text"})
    assert converted["a"].tolist() == [1.0, 1.0]
    assert converted["b"][0] == 1
    assert isinstance(converted["b"][1], engine.Tensor)
    assert converted["c"] == "text"


def test_one_process_loader() -> None:
    dataset = data.TensorDataset(engine.arange(10.0).view(5, 2), engine.arange(5))
    batches = list(data.DataLoader(dataset, batch_size=2))
    assert [labels.tolist() for _, labels in batches] == [[0, 1], [2, 3], [4]]
    assert batches[0][0].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert len(data.DataLoader(dataset, batch_size=2)) == 3
    assert len(data.DataLoader(dataset, batch_size=2, drop_last=True)) == 2
    assert [batch for batch in data.DataLoader(Squares(3), batch_size=None)] == [0, 1, 4]  # noqa: C416
    assert [batch.tolist() for batch in data.DataLoader(Squares(5), batch_sampler=[[4, 1], [0]])] == [[16, 1], [0]]
    doubled = data.DataLoader(Squares(4), 2, collate_fn=lambda samples: [2 * sample for sample in samples])
    assert list(doubled) == [[0, 2], [8, 18]]


def test_rows_taken_at_once_equal_rows_one_by_one() -> None:
    x = engine.randn(20, 3, 4)
    dataset = data.TensorDataset(x, engine.arange(20), x.transpose(1, 2))
    subset = data.Subset(data.Subset(dataset, list(range(3, 20))), [5, -1, 2, 0])
    for source in (dataset, subset):
        fast = list(data.DataLoader(source, batch_size=3))
        slow = list(data.DataLoader(source, batch_size=3, collate_fn=lambda samples: data.default_collate(samples)))
        for mine, reference in zip(fast, slow, strict=True):
            assert type(mine) is type(reference)
            for one, other in zip(mine, reference, strict=True):
                assert one.dtype is other.dtype
                assert one.stride() == other.stride()
                np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_shuffling_follows_the_generator() -> None:
    def order(**options: Any) -> list[int]:
        return [int(batch) for batch in data.DataLoader(Squares(12), shuffle=True, **options)]

    assert order(generator=seeded()) == order(generator=seeded())
    generator = seeded()
    assert order(generator=generator) != order(generator=generator)
    assert sorted(order()) == [index**2 for index in range(12)]


def test_iterable_datasets() -> None:
    class Count(data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(5))

        def __len__(self) -> int:
            return 5

    assert [batch.tolist() for batch in data.DataLoader(Count(), batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in data.DataLoader(Count(), batch_size=2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(data.DataLoader(Count(), batch_size=None)) == [0, 1, 2, 3, 4]
    assert len(data.DataLoader(Count(), batch_size=2)) == 3
    for name, value in (("shuffle", True), ("sampler", [0]), ("batch_sampler", [[0]])):
        with pytest.raises(ValueError, match=f"expected unspecified {name} option"):
            data.DataLoader(Count(), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": [0], "shuffle": True}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option is mutually exclusive"),
        ({"batch_sampler": [[0]], "drop_last": True}, "batch_sampler option is mutually exclusive"),
        ({"batch_size": None, "drop_last": True}, "disables auto-batching"),
        ({"batch_size": 0}, "batch_size should be a positive"),
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"prefetch_factor": 2}, "could only be specified in multiprocessing"),
        ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor option should be positive"),
        ({"persistent_workers": True}, "needs num_workers > 0"),
        ({"multiprocessing_context": "spawn"}, "can only be used with multi-process loading"),
        ({"num_workers": 1, "multiprocessing_context": "threads"}, "should specify a valid start method"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_arguments_that_contradict(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.DataLoader(Squares(3), **options)


def test_what_cannot_be_changed_later() -> None:
    loader = data.DataLoader(Squares(3))
    with pytest.raises(ValueError, match="dataset attribute should not be set after DataLoader is initialized"):
        loader.dataset = Squares(4)
    loader.timeout = 3


def test_pinned_memory_needs_a_gpu(monkeypatch) -> None:
    """Said once a job: by the first loader of the first rank."""
    monkeypatch.setattr(data.dataloader, "_told_of_no_gpu", False)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        data.DataLoader(Squares(3), pin_memory=True)
    data.DataLoader(Squares(3), pin_memory=True)  # warnings are errors here
    monkeypatch.setattr(data.dataloader, "_told_of_no_gpu", False)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    data.DataLoader(Squares(3), pin_memory=True)


def test_datasets_and_loaders_are_generic() -> None:
    class Numbers(data.Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

        def __len__(self) -> int:
            return 4

    class Words(data.IterableDataset[str]):
        def __iter__(self):
            return iter("ab")

    loader: data.DataLoader[int] = data.DataLoader(Numbers(), batch_size=2)
    assert [batch.sum().item() for batch in loader] == [1, 5]
    assert list(data.DataLoader(Words(), batch_size=None)) == ["a", "b"]
    assert data.DataLoader[int](Numbers()).dataset[3] == 3
    assert data.Sampler[int].__origin__ is data.Sampler
