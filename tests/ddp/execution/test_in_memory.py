"""Collectives of ranks on one node go through shared memory in rounds, whatever their size: exact in the order of
ranks, in every dtype, and nothing of them goes by MPI's messages.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np
import pytest

import ddp
import engine
from ddp.execution.messages import Messages
from ddp.groups.process_group import ProcessGroup
from ddp.transport.room import PLACE_BYTES, Room
from tests.mpi_job import run_job

EVERYWHERE = pytest.mark.mpi(ranks=[1, 2, 3, 4])
SEVERAL = pytest.mark.mpi(ranks=[2, 3, 4])

LARGE = 3 * PLACE_BYTES + 4321  # bytes, about: several places and a short last piece
DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
DTYPES += ["int8", "int16", "int32", "int64", "uint8", "bool"]


def count_of(dtype: str) -> int:
    return LARGE // getattr(engine, dtype).itemsize + 1


def values_of(rank: int, dtype: str, count: int) -> engine.Tensor:
    """What rank `rank` brings: no piece is like another, and sums depend on the order in which they are made."""
    draws = np.random.default_rng(rank)
    kind = getattr(engine, dtype)
    if dtype == "bool":
        return engine.from_numpy(draws.integers(4, size=count) == 0)
    if kind.is_complex:
        return engine.from_numpy(draws.normal(size=count) + 1j * draws.normal(size=count)).to(kind)
    if kind.is_floating_point:
        return engine.from_numpy(draws.normal(size=count) * 10.0 ** draws.integers(-3, 4, size=count)).to(kind)
    return engine.from_numpy(draws.integers(-100, 100, size=count)).to(kind)


def in_order(of_rank: Sequence[engine.Tensor], dtype: str) -> np.ndarray:
    """Their sum as NumPy makes it from left to right; float16 and bfloat16 are rounded once."""
    arrays = [values.numpy() for values in of_rank]
    if dtype == "bool":
        return reduce(np.logical_or, arrays)
    wide = [array.astype(np.float32) if dtype.endswith("float16") else array for array in arrays]
    return reduce(np.add, wide).astype(arrays[0].dtype)


@pytest.fixture
def rounds(group: ProcessGroup, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes that this rank lays down in each round. MPI's messages are an error."""
    laid: list[int] = []

    def lay_down(room: Room, parts: Sequence[np.ndarray], *words: Sequence[int], before=Room.lay_down) -> None:
        laid.append(sum(part.nbytes for part in parts))
        assert laid[-1] <= room.place_bytes
        before(room, parts, *words)

    def message(*_: object) -> None:
        raise AssertionError("a message of MPI")

    monkeypatch.setattr(Room, "lay_down", lay_down)
    monkeypatch.setattr(Messages, "swap", message)
    monkeypatch.setattr(Messages, "_call", message)
    return laid


def call_all(group: ProcessGroup, dtype: str, count: int) -> None:
    """Every collective that goes in rounds, beside what it is to give."""
    size, rank, root = group.size(), group.rank, group.size() - 1
    of_rank = [values_of(one, dtype, count) for one in range(size)]
    own, total = of_rank[rank], in_order(of_rank, dtype)

    ddp.all_reduce(summed := own.clone())
    assert np.array_equal(summed.numpy(), total)
    for to in {0, root}:
        ddp.reduce(at_root := own.clone(), to)
        assert np.array_equal(at_root.numpy(), total if rank == to else own.numpy())
        ddp.broadcast(sent := own.clone(), to)
        assert np.array_equal(sent.numpy(), of_rank[to].numpy())
    ddp.all_gather(everyones := [engine.zeros_like(own) for _ in range(size)], own)
    assert all(np.array_equal(found.numpy(), of.numpy()) for found, of in zip(everyones, of_rank, strict=True))
    ddp.all_gather_into_tensor(joined := engine.zeros(size * count, dtype=own.dtype), own)
    assert np.array_equal(joined.numpy(), np.concatenate([of.numpy() for of in of_rank]))

    rows = [of_rank[(rank + place) % size] for place in range(size)]  # row r of rank s is that of rank r + s
    expected = in_order([of_rank[(one + rank) % size] for one in range(size)], dtype)
    ddp.reduce_scatter(part := engine.zeros_like(own), rows)
    assert np.array_equal(part.numpy(), expected)
    ddp.reduce_scatter_tensor(part := engine.zeros_like(own), engine.cat(rows))
    assert np.array_equal(part.numpy(), expected)

    for at in {0, root}:
        found = [engine.zeros_like(own) for _ in range(size)] if rank == at else None
        ddp.gather(own, found, at)
        assert found is None or all(map(engine.equal, found, of_rank))
        ddp.scatter(part := engine.zeros_like(own), [*reversed(of_rank)] if rank == at else None, at)
        assert engine.equal(part, of_rank[size - 1 - rank])
    sizes = [[count * ((one + 2 * to) % 3) // 2 for to in range(size)] for one in range(size)]  # from rank to rank
    coming = [of_rank[one].repeat(2)[: sizes[one][rank]] for one in range(size)]
    going = [own.repeat(2)[:length] for length in sizes[rank]]
    ddp.all_to_all(came := [engine.zeros_like(one) for one in coming], going)
    assert all(map(engine.equal, came, coming))
    lengths = [row[rank] for row in sizes]
    ddp.all_to_all_single(whole := engine.zeros_like(engine.cat(coming)), engine.cat(going), lengths, sizes[rank])
    assert engine.equal(whole, engine.cat(coming))


@EVERYWHERE
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_tensors_of_every_dtype(group: ProcessGroup, rounds: list[int], dtype: str) -> None:
    call_all(group, dtype, count_of(dtype))
    if group.size() > 1:
        assert len(rounds) > 4 * 9
        assert max(group.exchange(max(rounds))) > PLACE_BYTES - 64 * group.size()  # whole places


@SEVERAL
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
def test_all_sizes_beside_those_of_places(
    group: ProcessGroup, rounds: list[int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With places of 512 bytes, of up to five of them."""
    assert group.lines is not None
    monkeypatch.setattr(group.lines.room, "place_bytes", 512)
    itemsize = getattr(engine, dtype).itemsize
    for nbytes in range(0, 5 * 512, 37):
        call_all(group, dtype, -(-nbytes // itemsize))
        assert len(set(group.exchange(len(rounds)))) == 1


@SEVERAL
@pytest.mark.parametrize("op", ["AVG", "PRODUCT", "MIN", "MAX"])
def test_other_operations_of_large_tensors(group: ProcessGroup, rounds: list[int], op: str) -> None:
    size, count = group.size(), count_of("float32")
    arrays = [values_of(one, "float32", count).numpy() for one in range(size)]
    if op == "AVG":
        expected = reduce(np.add, arrays) / np.float32(size)
    else:
        expected = reduce({"PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}[op], arrays)
    ddp.all_reduce(tensor := values_of(group.rank, "float32", count), ddp.ReduceOp[op])
    assert np.array_equal(tensor.numpy(), expected)
    assert len(rounds) > 4


@SEVERAL
def test_what_a_rank_gathers_into_may_be_what_it_sends(group: ProcessGroup, rounds: list[int]) -> None:
    count = count_of("float32")
    of_rank = [values_of(one, "float32", count) for one in range(group.size())]
    whole = engine.zeros(group.size() * count)
    own = whole[group.rank * count : (group.rank + 1) * count]
    own.copy_(of_rank[group.rank])
    ddp.all_gather_into_tensor(whole, own)
    assert engine.equal(whole, engine.cat(of_rank))
    assert len(rounds) > 3


@SEVERAL
def test_large_ones_of_several_groups_under_way_are_waited_for_in_any_order(group: ProcessGroup) -> None:
    size, rank, count = group.size(), group.rank, count_of("float32")
    groups = [None, ddp.new_group(), ddp.new_group([0, size - 1])]
    of_rank = [values_of(one, "float32", count) for one in range(size)]
    works, checks = [], list[Callable[[], bool]]()
    for number, members in enumerate(groups):
        ranks = [0, size - 1] if number == 2 else list(range(size))
        if rank not in ranks:
            continue
        total = in_order([of_rank[one] for one in ranks], "float32")
        summed, sent, found = of_rank[rank].clone(), of_rank[rank].clone(), [engine.zeros(count) for _ in ranks]
        works += [
            ddp.all_reduce(summed, group=members, async_op=True),
            ddp.broadcast(sent, size - 1, members, async_op=True),
            ddp.all_gather(found, of_rank[rank], members, async_op=True),
        ]
        checks += [
            lambda summed=summed, total=total: np.array_equal(summed.numpy(), total),
            lambda sent=sent: engine.equal(sent, of_rank[-1]),
            lambda found=found, ranks=ranks: all(map(engine.equal, found, [of_rank[one] for one in ranks])),
        ]
    for place in np.random.default_rng(rank).permutation(len(works)):
        works[place].wait()
        assert checks[place]()
    ddp.barrier()


@SEVERAL
def test_large_calls_that_do_not_fit_together_change_nothing(group: ProcessGroup) -> None:
    rank, count = group.rank, count_of("float32")
    tensor = values_of(rank, "float32", count + 5 * rank)
    before = tensor.clone()
    found = [engine.zeros_like(tensor) for _ in range(group.size())]
    part = engine.zeros_like(tensor)
    for call in (
        lambda: ddp.all_reduce(tensor),
        lambda: ddp.reduce(tensor, 0),
        lambda: ddp.broadcast(tensor, 0),
        lambda: ddp.all_gather(found, tensor),
        lambda: ddp.reduce_scatter(part, [tensor] * group.size()),
        lambda: ddp.gather(tensor, found if rank == 0 else None),
        lambda: ddp.scatter(part, found if rank == 0 else None),
    ):
        with pytest.raises(ValueError, match="tensors differ between ranks"):
            call()
    with pytest.raises(ValueError, match=r"all_to_all: rank 0 sends .* to rank 1, which expects"):
        ddp.all_to_all(found, [tensor] * group.size())
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives"):
        ddp.all_reduce(tensor) if rank else ddp.broadcast(tensor, 0)
    assert engine.equal(tensor, before)
    assert not any(one.any() for one in (part, *found))
    ddp.all_reduce(tensor := engine.ones(count))
    assert (tensor == group.size()).all()


FAILING = """
import ddp, engine
from ddp.transport.room import Room

ddp.init_process_group()
laid = []

def lay_down(room, parts, *words, before=Room.lay_down):
    laid.append(parts)
    if ddp.get_rank() == 1 and len(laid) == 3:
        raise KeyError("lost in a round")
    before(room, parts, *words)

Room.lay_down = lay_down
try:
    ddp.all_reduce(engine.ones(3_000_000))
except KeyError:
    ddp.all_reduce(engine.ones(3))
print("the end")
"""


@pytest.mark.full
def test_after_an_exception_in_the_midst_of_the_rounds_nothing_goes_on() -> None:
    result = run_job(FAILING, 2, timeout=90, runner=())
    assert result.returncode != 0
    assert "the end" not in result.stdout
    assert result.stderr.startswith("rank 1 of 2 raised:\nTraceback (most recent call last):\n")
    assert re.search("RuntimeError: transport shared memory: KeyError: 'lost in a round' ended it", result.stderr)
