"""Collectives go through memory on one node, in as many pieces as places hold, and through MPI elsewhere: the results
are the same.
"""

from collections.abc import Iterator

import numpy as np
import pytest

import ddp
import engine
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.transport.room import PLACE_BYTES
from engine import nn

LARGE = 3 * PLACE_BYTES // 4 + 1000  # float32 for which the places of four rounds are needed: the first once more


@pytest.fixture(scope="module", params=[None, "mpi"], ids=["memory", "mpi"])
def road(request) -> Iterator[ProcessGroup]:
    ddp.init_process_group(transport=request.param)
    group = resolve(None)
    assert group.lines is not None
    assert (group.lines.room is None) == (request.param == "mpi")
    yield group
    ddp.destroy_process_group()


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize("count", [1, 5, 3000, LARGE])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_everybody_holds(road: ProcessGroup, count: int, asynchronous: bool) -> None:
    size, rank = road.size(), road.rank
    of_rank = [np.arange(count) % 11 + one for one in range(size)]

    def own() -> engine.Tensor:
        return engine.tensor(of_rank[rank].astype(np.float32))

    summed, greatest, sent, at_root, part = own(), own(), own(), own(), engine.zeros(count)
    everyones = [engine.zeros(count) for _ in range(size)]
    rows = [own() * (place + 1) for place in range(size)]
    works = [
        ddp.all_reduce(summed, async_op=asynchronous),
        ddp.all_reduce(greatest, ddp.ReduceOp.MAX, async_op=asynchronous and rank == 0),
        ddp.broadcast(sent, size - 1, async_op=asynchronous),
        ddp.reduce(at_root, 1, async_op=asynchronous),
        ddp.all_gather(everyones, own(), async_op=asynchronous),
        ddp.reduce_scatter(part, rows, async_op=asynchronous),
        ddp.barrier(async_op=asynchronous),
    ]
    for work in reversed(works):
        if work is not None:
            work.wait()
    assert np.array_equal(summed.numpy(), sum(of_rank))
    assert np.array_equal(greatest.numpy(), of_rank[-1])
    assert np.array_equal(sent.numpy(), of_rank[-1])
    assert np.array_equal(at_root.numpy(), sum(of_rank) if rank == 1 else of_rank[rank])
    assert np.array_equal([one.numpy() for one in everyones], of_rank)
    assert np.array_equal(part.numpy(), sum(of_rank) * (rank + 1))


@pytest.mark.mpi(ranks=[2, 3])
def test_calls_that_do_not_fit_together_are_refused_and_change_nothing(road: ProcessGroup) -> None:
    tensor = engine.full((3 + road.rank,), 7.0)
    with pytest.raises(ValueError, match="all_reduce: tensors differ between ranks"):
        ddp.all_reduce(tensor)
    assert tensor.tolist() == [7.0] * (3 + road.rank)
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives"):
        ddp.all_reduce(engine.ones(2)) if road.rank else ddp.barrier()
    ddp.all_reduce(tensor := engine.ones(2))
    assert tensor.tolist() == [road.size()] * 2


@pytest.mark.mpi(ranks=[2])
def test_a_large_message_under_way_reaches_who_waits_for_it(road: ProcessGroup) -> None:
    """The sender is in a collective, which goes through memory, while its message needs MPI on both sides."""
    values = engine.arange(3_000_000)
    if road.rank == 0:
        work = ddp.isend(values, 1)
        ddp.barrier()
        assert work is not None
        work.wait()
    else:
        received = engine.zeros(3_000_000, dtype=values.dtype)
        ddp.recv(received, 0)
        ddp.barrier()
        assert engine.equal(received, values)


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.parametrize("count", [3, 10_000, 10 * LARGE])
def test_what_another_rank_waits_for_first_goes_on_while_this_one_waits_for_gradients(
    road: ProcessGroup, count: int
) -> None:
    """Rank 0 comes to its backward when the collective is over, which the others are to wait for after theirs."""
    net = ddp.DistributedDataParallel(nn.Linear(8, 8))
    for _ in range(3):
        tensor = engine.ones(count)
        work = ddp.all_reduce(tensor, async_op=True)
        assert work is not None
        if road.rank == 0:
            work.wait()
        net(engine.ones(2, 8)).sum().backward()
        work.wait()
        assert np.array_equal(tensor.numpy(), np.full(count, road.size()))
