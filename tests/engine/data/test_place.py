"""state_dict and load_state_dict of samplers and DataLoader: the next batch is the one that would have come."""

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import engine
from engine import data

GIVEN = 3  # batches before the state is taken


class Numbers(data.Dataset):
    """i."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> engine.Tensor:
        return engine.tensor(index)


class Stream(data.IterableDataset):
    """0, 1, ... 10; with workers, each all of them."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


class PlacedStream(data.IterableDataset):
    """0, 1, ... 11, from a place that it knows."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while self.next < 12:
            self.next += 1
            yield self.next - 1
        self.next = 0  # of the next epoch

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def generator() -> engine.Generator:
    return engine.Generator().manual_seed(5)


LOADERS: dict[str, Callable[..., data.DataLoader]] = {
    "in order": lambda **how: data.DataLoader(Numbers(), 2, **how),
    "shuffled": lambda **how: data.DataLoader(Numbers(), 2, shuffle=True, drop_last=True, **how),
    "own generator": lambda **how: data.DataLoader(Numbers(), 2, shuffle=True, generator=generator(), **how),
    "replacement": lambda **how: data.DataLoader(
        Numbers(), 2, sampler=data.RandomSampler(Numbers(), True, 90, generator()), **how
    ),
    "subset": lambda **how: data.DataLoader(Numbers(), 2, sampler=data.SubsetRandomSampler(range(4, 20)), **how),
    "weighted": lambda **how: data.DataLoader(Numbers(), 2, sampler=data.WeightedRandomSampler([1.0] * 23, 12), **how),
    "samples": lambda **how: data.DataLoader(Numbers(), None, **how),
    "a list": lambda **how: data.DataLoader(Numbers(), 2, sampler=[*range(20, 0, -1)], **how),
    "list of batches": lambda **how: data.DataLoader(
        Numbers(), batch_sampler=[[a, a + 1] for a in range(0, 20, 2)], **how
    ),
    "stream": lambda **how: data.DataLoader(Stream(), 2, **how),
    "placed stream": lambda **how: data.DataLoader(PlacedStream(), 2, **how),
}


def epochs(loader: Any, count: int) -> list[list[Any]]:
    """What so many epochs give, with random numbers that training draws after each batch."""
    return [[(batch.tolist(), engine.rand(1).item()) for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_next_batch_is_the_one_that_would_have_come(kind, workers, persistent) -> None:
    """Also of the epoch after that; the state is of what was given out, not of what workers have prepared."""
    if persistent and not workers:
        return
    how = {"num_workers": workers, "persistent_workers": persistent}
    engine.manual_seed(1)
    loader = LOADERS[kind](**how)
    epochs(loader, 1)
    batches = iter(loader)
    for _ in range(GIVEN):
        next(batches)
    saved = json.dumps(loader.state_dict(), default=list)
    random = engine.get_rng_state()
    expected = [[(batch.tolist(), engine.rand(1).item()) for batch in batches], *epochs(loader, 1)]

    engine.manual_seed(2)
    again = LOADERS[kind](**how)
    again.load_state_dict(json.loads(saved, object_hook=_with_bytes))
    assert json.dumps(again.state_dict(), default=list) == saved
    engine.set_rng_state(random)
    assert epochs(again, 2) == expected


def _with_bytes(found: dict[str, Any]) -> dict[str, Any]:
    """JSON has no bytes."""
    return {key: bytes(value) if isinstance(value, list) else value for key, value in found.items()}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("ended", [False, True])
def test_the_end_of_an_epoch(kind, ended) -> None:
    """With no batch left the next iteration is empty; after the end it is the next epoch."""
    engine.manual_seed(1)
    loader = LOADERS[kind]()
    batches = iter(loader)
    count = len(epochs(LOADERS[kind](), 1)[0])
    for _ in range(count):
        next(batches)
    if ended:
        assert next(batches, None) is None
    state, random = loader.state_dict(), engine.get_rng_state()
    expected = epochs(loader, 1) if ended else [[], *epochs(loader, 1)] if next(batches, None) is None else None
    again = LOADERS[kind]()
    again.load_state_dict(state)
    engine.set_rng_state(random)
    assert epochs(again, len(expected)) == expected


def test_before_the_first_epoch() -> None:
    engine.manual_seed(1)
    loader = data.DataLoader(Numbers(), 2, shuffle=True)
    state, random = loader.state_dict(), engine.get_rng_state()
    expected = epochs(loader, 1)
    again = data.DataLoader(Numbers(), 2, shuffle=True)
    again.load_state_dict(state)
    engine.set_rng_state(random)
    assert epochs(again, 1) == expected


def test_a_sampler_by_itself() -> None:
    sampler = data.RandomSampler(Numbers())
    indices = iter(sampler)
    first = [next(indices) for _ in range(7)]
    again = data.RandomSampler(Numbers())
    again.load_state_dict(sampler.state_dict())
    left = list(again)
    assert left == list(indices)
    assert sorted(first + left) == list(range(23))
    assert len(list(again)) == 23


def test_batches_of_another_size() -> None:
    loader = data.DataLoader(Numbers(), 4)
    list(itertools.islice(loader, 2))
    again = data.DataLoader(Numbers(), 5)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [[8, 9, 10, 11, 12], [13, 14, 15, 16, 17], [18, 19, 20, 21, 22]]


def test_refused() -> None:
    loader = data.DataLoader(Numbers(), 2, num_workers=1, in_order=False)
    for action in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(ValueError, match="in_order=False"):
            action()
    with_generator = data.RandomSampler(Numbers(), generator=generator())
    next(iter(with_generator))
    without = data.RandomSampler(Numbers())
    without.load_state_dict(with_generator.state_dict())
    with pytest.raises(ValueError, match="this one has none"):
        list(without)
