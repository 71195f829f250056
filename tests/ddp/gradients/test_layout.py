"""One memory order from the parameter to the wire and back: gradients are bucket memory, laid out as parameters are."""

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

import ddp
import engine
import engine.nn as nn
from ddp import DistributedDataParallel
from engine.optim import AdamW
from engine.optim import laying_out as flat
from tests.ddp.models import TASKS, batch, build, loss_of

CAPS = {"one bucket": None, "many buckets": 0.0005}


def storages(net: DistributedDataParallel) -> dict[int, int]:
    """Address of each block of memory that gradients look into -> its bytes."""
    found = [parameter.grad.untyped_storage() for parameter in net.parameters() if parameter.grad is not None]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def train(net: nn.Module, optimizer: engine.optim.Optimizer, task: str, steps: int = 3) -> None:
    for step in range(steps):
        inputs, targets = batch(TASKS[task], engine.float32, step)
        optimizer.zero_grad()
        loss_of(net, inputs, targets).backward()
        optimizer.step()


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("cap", CAPS.values(), ids=CAPS.keys())
@pytest.mark.parametrize("task", TASKS)
def test_gradients_are_views_into_buckets_with_their_parameters_strides(group, task, cap) -> None:
    engine.set_layout_report("strict")
    net = DistributedDataParallel(build(TASKS[task], engine.float32), bucket_cap_mb=cap)
    optimizer = AdamW(net.parameters(), lr=1e-3)
    copies = flat.layout_copies
    for _ in range(3):
        train(net, optimizer, task, steps=1)
        for parameter in net.parameters():
            gradient = parameter.grad
            assert gradient.stride() == parameter.stride()
            assert gradient.data_ptr() % 64 == 0
        blocks = storages(net)
        sizes = net.reducer.buckets.sizes()
        assert len(blocks) == len(sizes)
        assert (len(sizes) > 1) == (cap is not None)
        # no two gradients overlap: in order of address, each ends before the next begins
        spans = sorted((p.grad.data_ptr(), p.grad.data_ptr() + p.grad.nbytes) for p in net.parameters())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert flat.layout_copies == copies
    assert net.reducer.buckets.layout_bytes == 0
    if task == "cnn":
        assert any(parameter.grad.is_contiguous(memory_format=engine.channels_last) for parameter in net.parameters())
        assert any(not parameter.grad.is_contiguous() for parameter in net.parameters())
    engine.set_layout_report("warn")


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("memory_format", [engine.contiguous_format, engine.channels_last], ids=str)
def test_there_is_one_copy_of_the_gradients(group, memory_format) -> None:
    """At its peak, backward holds two gradients beside the buckets, not all twelve; when it is over, none."""
    layers, megabyte = 12, 2**20
    convolutions = [nn.Conv2d(512, 512, 1, bias=False) for _ in range(layers)]  # 1 MiB each
    net = DistributedDataParallel(nn.Sequential(*convolutions).to(memory_format=memory_format))
    inputs = engine.ones(1, 512, 2, 2).to(memory_format=memory_format)
    for _ in range(2):
        net.zero_grad()
        loss = net(inputs).sum()
        tracemalloc.start()
        loss.backward()
        after, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 3 * megabyte
    assert after < 0.1 * megabyte
    # Buckets of several ranks are shared memory, which tracemalloc does not see: count their bytes.
    assert sum(net.reducer.buckets.sizes()) == layers * megabyte
    assert len(storages(net)) == len(net.reducer.buckets.sizes())


def layouts() -> Iterator[tuple[str, Callable[[], engine.Tensor]]]:
    """Parameters of every kind of layout: (id, make)."""
    yield "row-major", lambda: engine.zeros(4, 6)
    yield "column-major", lambda: engine.zeros(6, 4).t()
    yield "channels-last", lambda: engine.zeros(2, 3, 4, 5).to(memory_format=engine.channels_last)
    yield "permuted", lambda: engine.zeros(2, 3, 4).permute(1, 2, 0)
    yield "gaps", lambda: engine.zeros(4, 12)[:, ::2]
    yield "slice", lambda: engine.zeros(8, 6)[2:6, 1:5]
    yield "size 1", lambda: engine.zeros(6).as_strided((2, 1, 3), (3, 7, 1))
    yield "scalar", lambda: engine.zeros(())
    yield "empty", lambda: engine.zeros(0, 5)


@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("as_view", [True, False], ids=["view", "copy"])
@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in layouts()])
@pytest.mark.filterwarnings("ignore::engine.LayoutWarning")  # row-major gradients, on purpose
def test_every_layout_is_averaged_element_by_element(group, make, as_view) -> None:
    """A27: in a view or a copy; gradients have their parameters' strides."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(make())

        def forward(self, factor: engine.Tensor) -> engine.Tensor:
            return (self.weight * factor).sum()

    net = DistributedDataParallel(Model(), gradient_as_bucket_view=as_view)
    weight = net.module.weight
    numbers = np.arange(weight.numel(), dtype=np.float32).reshape(weight.shape)
    factor = engine.from_numpy(np.asarray(numbers * 12 * (group.rank + 1)))
    for _ in range(2):
        net.zero_grad()
        net(factor).backward()
        # sum of 12 (r + 1) over n ranks, divided by n
        assert np.array_equal(weight.grad.numpy(), numbers * 6 * (group.size() + 1))
        expected = weight.stride() if weight.is_non_overlapping_and_dense() else engine.zeros(weight.shape).stride()
        # the contract asks nothing of axes of size 1; a view has its parameter's stride there, too
        assert all(size == 1 or a == b for size, a, b in zip(weight.shape, weight.grad.stride(), expected, strict=True))
        assert not as_view or weight.grad.stride() == expected


@pytest.mark.mpi(ranks=[2])
def test_half_precision_and_mixed_dtypes_have_buckets_of_their_own(group) -> None:
    """D25: one dtype a bucket."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dtypes = (engine.float32, engine.float16, engine.float64, engine.bfloat16, engine.float32, engine.complex64)
            self.weights = nn.ParameterList([nn.Parameter(engine.zeros(3, dtype=dtype)) for dtype in dtypes])

        def forward(self, value: float) -> engine.Tensor:
            return sum((weight * value).to(engine.complex64).sum() for weight in self.weights)

    net = DistributedDataParallel(Model())
    net(float(2 * group.rank + 1)).backward(engine.ones((), dtype=engine.complex64))
    assert len(net.reducer.buckets.sizes()) == 5
    for weight in net.module.weights:
        assert weight.grad.dtype is weight.dtype
        assert weight.grad.tolist() == [2, 2, 2]


@pytest.mark.mpi(ranks=[2])
def test_views_of_the_user_stay_valid_after_the_end(group) -> None:
    """A gradient outlives the wrapper whose bucket it lies in."""
    net = DistributedDataParallel(nn.Linear(3, 3, bias=False))
    net(engine.ones(1, 3)).sum().backward()
    gradient = net.module.weight.grad
    del net
    ddp.barrier()
    assert gradient.tolist() == [[1, 1, 1]] * 3
