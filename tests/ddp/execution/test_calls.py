"""Ranks whose calls do not fit together are told so, all with the same words, and nothing was moved."""

import numpy as np
import pytest

import ddp
import engine
from ddp.execution.calls import MODULUS, Account, Call, digest, explain
from ddp.execution.layouts import TensorLayout

SEVERAL = pytest.mark.mpi(ranks=[2, 3, 4])

ROW = TensorLayout("a tensor", (1, 4), (4, 1), "float32")
COLUMN = TensorLayout("a tensor", (4, 1), (1, 1), "float32")


def test_calls_that_fit_together_balance() -> None:
    """Rank s sends s + r rows to rank r."""

    def rows(count: int) -> TensorLayout:
        return TensorLayout("rows", (count,), (1,), "int8")

    calls = [
        Call("x", sends=tuple(rows(me + to) for to in range(3)), expects=tuple(rows(me + of) for of in range(3)))
        for me in range(3)
    ]
    assert sum(digest(call, rank)[1] for rank, call in enumerate(calls)) % MODULUS == 0
    assert len({digest(Call("x", (("op", "SUM"),)), rank) for rank in range(3)}) == 1
    wrong = calls[1]._replace(expects=(rows(5), *calls[1].expects[1:]))
    assert sum(digest(call, rank)[1] for rank, call in enumerate([calls[0], wrong, calls[2]])) % MODULUS


@pytest.mark.parametrize(
    ("calls", "kind", "words"),
    [
        (
            [Call("reduce"), Call("reduce"), Call("barrier")],
            RuntimeError,
            "ranks 0, 1 are in reduce (a.py:1), rank 2 is in barrier (a.py:1); every rank must call the same",
        ),
        (
            [Call("reduce", (("op", "SUM"), ("dst", 0))), Call("reduce", (("op", "SUM"), ("dst", 1)))],
            ValueError,
            "reduce: dst differs between ranks: rank 1 has 1 where rank 0 has 0 (a.py:1 and a.py:1)",
        ),
        (
            [Call("reduce", (), (ROW,)), Call("reduce", (), (COLUMN,))],
            ValueError,
            "reduce: tensors differ between ranks: rank 1 has a tensor (4, 1) float32 where rank 0 has (1, 4) float32",
        ),
        (
            [Call("x", sends=(ROW, ROW), expects=(ROW, ROW)), Call("x", sends=(ROW, ROW), expects=(COLUMN, ROW))],
            ValueError,
            "x: rank 0 sends a tensor (1, 4) float32 with strides (4, 1) to rank 1, which expects a tensor (4, 1)",
        ),
    ],
)
def test_the_difference_in_words(calls, kind, words) -> None:
    error = explain([Account(call, "a.py:1") for call in calls])
    assert type(error) is kind
    assert words in str(error)


def zeros(*shape: int) -> engine.Tensor:
    return engine.zeros(shape)


MISTAKES = {
    "another collective": (
        RuntimeError,
        r"Detected mismatch between collectives on ranks: ranks? 0.* in all_reduce \(.*test_calls.py:\d+\), rank",
        lambda last: ddp.broadcast(zeros(3), 0) if last else ddp.all_reduce(zeros(3)),
    ),
    "a barrier": (
        RuntimeError,
        r"in all_gather_object \(.*test_calls.py:\d+\), rank \d is in barrier",
        lambda last: ddp.barrier() if last else ddp.all_gather_object([None] * ddp.get_world_size(), 1),
    ),
    "another shape": (
        ValueError,
        r"all_reduce: tensors differ between ranks: rank . has a tensor \(4,\) float32 where rank 0 has \(3,\) ",
        lambda last: ddp.all_reduce(zeros(4 if last else 3)),
    ),
    "another dtype": (
        ValueError,
        "broadcast: tensors differ between ranks: rank . has a tensor as float64 where rank 0 has float32",
        lambda last: ddp.broadcast(zeros(3).double() if last else zeros(3), 0),
    ),
    "another order of elements": (
        ValueError,
        r"all_gather: tensors .* rank . has a tensor \(2, 3\) with strides \(1, 2\) where rank 0 has \(3, 1\)",
        lambda last: ddp.all_gather(
            [zeros(2, 3) for _ in range(ddp.get_world_size())], zeros(3, 2).t() if last else zeros(2, 3)
        ),
    ),
    "another root": (
        ValueError,
        "broadcast: src differs between ranks: rank . has 1 where rank 0 has 0",
        lambda last: ddp.broadcast(zeros(3), int(last)),
    ),
    "another operation": (
        ValueError,
        "all_reduce: op differs between ranks: rank . has MAX where rank 0 has SUM",
        lambda last: ddp.all_reduce(zeros(3), ddp.ReduceOp.MAX if last else ddp.ReduceOp.SUM),
    ),
    "other splits": (
        ValueError,
        r"all_to_all_single: rank 0 sends rows \(1,\) float32 .* to rank ., which expects rows \(\d,\)",
        lambda last: ddp.all_to_all_single(
            zeros(ddp.get_world_size() + 1) if last else zeros(ddp.get_world_size()),
            zeros(ddp.get_world_size()),
            [2] + [1] * (ddp.get_world_size() - 1) if last else None,
        ),
    ),
    "another length of a list": (
        ValueError,
        "broadcast_object_list: length differs between ranks: rank . has 2 where rank 0 has 1",
        lambda last: ddp.broadcast_object_list([1, 2] if last else [3]),
    ),
}


@SEVERAL
@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_rank_raises_the_same_and_can_go_on(group, ranks: int, mistake: str) -> None:
    kind, words, call = MISTAKES[mistake]
    with pytest.raises(kind, match=words) as raised:
        call(group.rank == ranks - 1)
    assert len(set(group.exchange(str(raised.value)))) == 1
    tensor = engine.ones(2)
    ddp.all_reduce(tensor)
    assert (tensor == ranks).all()


@SEVERAL
def test_nothing_is_moved(group, ranks: int) -> None:
    tensor = engine.full((3 if group.rank else 4,), float(group.rank))
    with pytest.raises(ValueError, match="tensors differ"):
        ddp.all_reduce(tensor)
    assert (tensor == group.rank).all()


@SEVERAL
def test_of_an_async_operation_the_wait_raises(group, ranks: int) -> None:
    right = engine.ones(2)
    works = [
        ddp.all_reduce(zeros(3 if group.rank else 4), async_op=True),
        ddp.all_reduce(right, async_op=True),
    ]
    future = works[0].get_future()
    works[1].wait()  # what comes after it is not disturbed
    assert (right == ranks).all()
    with pytest.raises(ValueError, match=r"tensors differ between ranks.*test_calls.py:\d+"):
        works[0].wait()
    assert isinstance(works[0].exception(), ValueError)
    assert not works[0].is_success()
    with pytest.raises(ValueError, match="tensors differ"):
        future.wait()
    with pytest.raises(RuntimeError, match="it has no result yet"):
        works[0].result()


@pytest.mark.mpi(ranks=[3])
def test_in_a_group_the_ranks_of_the_world_are_named(group) -> None:
    some = ddp.new_group([0, 2])
    if group.rank != 1:
        with pytest.raises(ValueError, match="which in the world are ranks 0, 2"):
            ddp.all_reduce(zeros(group.rank + 1), group=some)
        ddp.destroy_process_group(some)


@SEVERAL
def test_layouts_that_mean_the_same_are_alike(group) -> None:
    """Strides of axes of size 1 and gaps between rows are no difference; both have the same elements in one order."""
    odd = engine.zeros(8).as_strided((1, 4), (77, 1)) if group.rank else zeros(1, 4)
    ddp.all_reduce(odd)
    gaps = engine.zeros(4, 6)[:, :3] if group.rank else zeros(4, 3)
    ddp.all_reduce(gaps)
    assert np.array_equal(gaps.numpy(), np.zeros((4, 3)))
