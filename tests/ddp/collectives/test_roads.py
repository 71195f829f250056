"""Collectives of one node go through memory, others through MPI: results are the same."""

from collections.abc import Iterator

import numpy as np
import pytest

import ddp
import engine
from ddp.groups.group import resolve
from ddp.groups.process_group import ProcessGroup
from ddp.transport.room import PLACE_BYTES
from engine import nn

FITTING = PLACE_BYTES // 4  # float32
LARGE = 3 * FITTING + 1000  # that take several rounds, the last one short


@pytest.fixture(scope="module", params=[None, "mpi"], ids=["memory", "mpi"])
def road(request) -> Iterator[ProcessGroup]:
    ddp.init_process_group(transport=request.param)
    group = resolve(None)
    if group.size() > 1:
        assert group.lines is not None
        assert (group.lines.room is None) == (request.param == "mpi")
    yield group
    ddp.destroy_process_group()


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 5, 3000, FITTING // 3 + 1, FITTING - 1, FITTING, FITTING + 1, LARGE])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_everybody_holds(road: ProcessGroup, count: int, asynchronous: bool) -> None:
    size, rank = road.size(), road.rank
    of_rank = [np.arange(count) % 11 + one for one in range(size)]

    def own() -> engine.Tensor:
        return engine.tensor(of_rank[rank].astype(np.float32))

    summed, greatest, sent, at_root, part = own(), own(), own(), own(), engine.zeros(count)
    everyones, exchanged = ([engine.zeros(count) for _ in range(size)] for _ in range(2))
    joined, scattered = engine.zeros(size * count), engine.zeros(count)
    rows = [own() * (place + 1) for place in range(size)]
    works = [
        ddp.all_reduce(summed, async_op=asynchronous),
        ddp.all_reduce(greatest, ddp.ReduceOp.MAX, async_op=asynchronous and rank == 0),
        ddp.broadcast(sent, size - 1, async_op=asynchronous),
        ddp.reduce(at_root, 1, async_op=asynchronous),
        ddp.all_gather(everyones, own(), async_op=asynchronous),
        ddp.all_gather_into_tensor(joined, own(), async_op=asynchronous),
        ddp.reduce_scatter(part, rows, async_op=asynchronous),
        ddp.reduce_scatter_tensor(scattered, engine.cat(rows), async_op=asynchronous),
        ddp.all_to_all(exchanged, rows, async_op=asynchronous),
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
    assert np.array_equal(joined.numpy(), np.concatenate(of_rank))
    assert np.array_equal(part.numpy(), sum(of_rank) * (rank + 1))
    assert np.array_equal(scattered.numpy(), part.numpy())
    assert np.array_equal([one.numpy() for one in exchanged], [values * (rank + 1) for values in of_rank])


@pytest.mark.mpi(ranks=[2, 3, 4])
@pytest.mark.parametrize("road", [None], indirect=True)
@pytest.mark.parametrize("dtype", [engine.float32, engine.bfloat16])
def test_a_large_sum_on_one_node_is_added_up_in_the_order_of_ranks(road: ProcessGroup, dtype: engine.dtype) -> None:
    size, rank = road.size(), road.rank
    of_rank = [engine.tensor(np.random.default_rng(one).normal(size=LARGE)).to(dtype) for one in range(size)]
    expected = of_rank[0].float()
    for addend in of_rank[1:]:
        expected = expected + addend.float()
    summed, part = of_rank[rank].clone(), engine.zeros(LARGE, dtype=dtype)
    ddp.all_reduce(summed)
    ddp.reduce_scatter(part, [of_rank[rank]] * size)
    assert engine.equal(summed, expected.to(dtype))
    assert engine.equal(part, summed)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("count", [6, FITTING + 2])
def test_what_is_sent_may_share_memory_with_what_is_filled(road: ProcessGroup, count: int) -> None:
    size, rank = road.size(), road.rank
    of_rank = [np.arange(count, dtype=np.float32) + one for one in range(size)]

    def own(into: engine.Tensor) -> engine.Tensor:
        return into.copy_(engine.from_numpy(of_rank[rank]))

    whole = engine.zeros(size * count + 1)
    for first in (rank * count, 0, rank * count + 1):  # its own part; that of rank 0; shifted
        ddp.all_gather_into_tensor(whole[:-1], own(whole[first : first + count]))
        assert np.array_equal(whole[:-1].numpy(), np.concatenate(of_rank))
    tensors = [engine.zeros(count) for _ in range(size)]
    for place in (rank, 0):
        ddp.all_gather(tensors, own(tensors[place]))
        assert np.array_equal([tensor.numpy() for tensor in tensors], of_rank)
    ddp.all_to_all(tensors, tensors)
    assert np.array_equal([tensor.numpy() for tensor in tensors], [of_rank[rank]] * size)
    ddp.reduce_scatter(tensors[0], tensors)
    assert np.array_equal(tensors[0].numpy(), sum(of_rank))
    rows = own(engine.zeros(count)).reshape(-1, 1).expand(count, size).reshape(count, size).T.contiguous()
    ddp.all_to_all_single(rows, rows)
    assert np.array_equal(rows.numpy(), of_rank)
    ddp.all_to_all_single(turned := engine.zeros(count, size).T, rows)
    assert np.array_equal(turned.numpy(), [of_rank[rank]] * size)


@pytest.mark.mpi(ranks=[2])
@pytest.mark.parametrize("shape", [(3, 4), (300, 500)])
def test_parts_come_to_tensors_however_they_lie(road: ProcessGroup, shape: tuple[int, int]) -> None:
    """Those that lie as what is sent are written by MPI or from the room, the others afterwards."""
    rows, columns = shape
    of_rank = [engine.arange(rows * columns).reshape(shape).float() + one for one in range(2)]
    for own in (
        of_rank[road.rank],
        of_rank[road.rank].T.contiguous().T,
        engine.stack([of_rank[road.rank]] * 2, 2)[..., 0],
    ):
        for made in (engine.zeros(shape), engine.zeros(columns, rows).T, engine.zeros(rows, columns, 2)[..., 1]):
            tensors = [made, engine.zeros(shape)]
            before = made._version
            ddp.all_gather(tensors, own)
            assert all(engine.equal(found, expected) for found, expected in zip(tensors, of_rank, strict=True))
            assert made._version > before
            ddp.all_gather_into_tensor(joined := engine.zeros(columns, 2 * rows).T, own)
            assert engine.equal(joined, engine.cat(of_rank))


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
