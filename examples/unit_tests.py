"""Unit tests of code that runs on several ranks, without starting any: each rank is a thread of pytest's process.

    pytest examples/unit_tests.py

`docs/testing_threads.md` says what such a rank can do and what it cannot.
"""

import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from ddp.testing import on_ranks, run_ranks
from engine.optim import SGD


class Accuracy:
    """What is to be tested: right answers of all ranks by all samples of all ranks."""

    def __init__(self) -> None:
        self.counts = engine.zeros(2, dtype=engine.int64)

    def update(self, predicted: engine.Tensor, wanted: engine.Tensor) -> None:
        self.counts += engine.tensor([int((predicted == wanted).sum()), wanted.numel()])

    def compute(self) -> float:
        total = self.counts.clone()
        ddp.all_reduce(total)
        return total[0].item() / total[1].item()


@on_ranks(1, 2, 4)
def test_accuracy_is_that_of_all_ranks() -> None:
    """The body runs on every rank, of a world of 1, of 2 and of 4."""
    accuracy = Accuracy()
    samples = ddp.get_rank() + 1  # each rank has another number of them, one of which is wrong
    accuracy.update(engine.arange(samples), engine.arange(samples).clamp(max=samples - 2))
    size = ddp.get_world_size()
    total = size * (size + 1) // 2
    assert accuracy.compute() == (total - size) / total


def test_replicas_stay_alike() -> None:
    """`run_ranks` returns what every rank has returned."""

    def train() -> list[float]:
        net = DistributedDataParallel(nn.Linear(4, 1))
        optimizer = SGD(net.parameters(), lr=0.1)
        inputs = engine.full((2, 4), float(ddp.get_rank()))
        for _ in range(3):
            optimizer.zero_grad()
            net(inputs).square().sum().backward()
            optimizer.step()
        return net.module.weight.flatten().tolist()

    first, *others = run_ranks(3, train)
    assert others == [first, first]


def test_a_rank_that_is_left_alone() -> None:
    """Ranks that wait for each other are an error at once, which names them."""

    def only_rank_0() -> None:
        if ddp.get_rank() == 0:
            ddp.barrier()

    with pytest.raises(RuntimeError, match=r"rank 0 in .*unit_tests.py.*, rank 1 at the end"):
        run_ranks(2, only_rank_0)
