"""Collectives on tensors: what every rank holds afterwards, for every dtype and layout, on 1 to 4 ranks.

Values are small integers, so that sums are exact in any order.
"""

import numpy as np
import pytest

import ddp
import engine
from ddp import ReduceOp
from ddp.execution import messages

EVERYWHERE = pytest.mark.mpi(ranks=[1, 2, 3, 4])

DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
DTYPES += ["int8", "int16", "int32", "int64", "uint8", "bool"]


def part(rank: int, dtype: str = "float32", shape: tuple[int, ...] = (2, 3)) -> engine.Tensor:
    """What rank `rank` brings: different on every rank and in every place."""
    size = int(np.prod(shape))
    return (engine.arange(size).reshape(shape) % 5 + rank).to(getattr(engine, dtype))


def layouts(values: engine.Tensor) -> dict[str, engine.Tensor]:
    """The same matrix in memory orders of all kinds."""
    rows, columns = values.shape
    wide = engine.zeros(rows, 2 * columns, dtype=values.dtype)
    found = {
        "rows": values.clone(),
        "columns": engine.empty(columns, rows, dtype=values.dtype).t(),
        "sliced": wide[:, ::2],
        "offset": engine.zeros(rows + 1, columns, dtype=values.dtype)[1:],
    }
    for tensor in found.values():
        tensor.copy_(values)
    return found


@EVERYWHERE
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_in_every_dtype_and_layout(group, ranks: int, dtype: str) -> None:
    expected = np.sum([part(rank, dtype).numpy() for rank in range(ranks)], 0).astype(part(0, dtype).numpy().dtype)
    for kind, tensor in layouts(part(group.rank, dtype)).items():
        stride, version = tensor.stride(), tensor._version
        assert ddp.all_reduce(tensor) is None
        assert np.array_equal(tensor.numpy(), expected), kind
        assert tensor.stride() == stride
        assert tensor._version > version  # what autograd saved of it is out of date


OPERATIONS = {
    "AVG": lambda parts: np.sum(parts, 0) / len(parts),
    "PRODUCT": lambda parts: np.prod(parts, 0),
    "MIN": lambda parts: np.min(parts, 0),
    "MAX": lambda parts: np.max(parts, 0),
    "BAND": lambda parts: np.bitwise_and.reduce(parts),
    "BOR": lambda parts: np.bitwise_or.reduce(parts),
    "BXOR": lambda parts: np.bitwise_xor.reduce(parts),
}


@EVERYWHERE
@pytest.mark.parametrize("op", OPERATIONS)
def test_operations(group, ranks: int, op: str) -> None:
    for dtype in ("int64", "bool") if op.startswith("B") else ("float16", "bfloat16", "float32", "float64"):
        parts = [part(rank, dtype).numpy() for rank in range(ranks)]
        kind = np.float64 if dtype.endswith("16") else parts[0].dtype
        expected = OPERATIONS[op]([values.astype(kind) for values in parts]).astype(parts[0].dtype)
        tensor = part(group.rank, dtype)
        ddp.all_reduce(tensor, ReduceOp[op])
        assert np.array_equal(tensor.numpy(), expected), dtype


@EVERYWHERE
def test_the_sum_of_truth_values_is_whether_any_is_true(group, ranks: int) -> None:
    """H33: bool."""
    tensor = engine.tensor([True, False, group.rank == 0])
    ddp.all_reduce(tensor)
    assert tensor.tolist() == [True, False, True]
    ddp.all_reduce(tensor, ReduceOp.PRODUCT)
    assert tensor.tolist() == [True, False, True]


@EVERYWHERE
def test_a_sum_in_half_precision_is_rounded_once(group, ranks: int) -> None:
    """In float16 itself 2048 + 1 + 1 would stay 2048."""
    tensor = engine.tensor([2048.0 if group.rank == 0 else 1.0], dtype=engine.float16)
    ddp.all_reduce(tensor)
    assert tensor.item() == np.float16(2048 + ranks - 1)


@EVERYWHERE
def test_premultiplied_sum(group, ranks: int) -> None:
    for factor in (group.rank + 1, engine.tensor([group.rank + 1.0])):
        tensor = part(group.rank)
        ddp.all_reduce(tensor, ddp._make_nccl_premul_sum(factor))
        assert np.array_equal(tensor.numpy(), sum((rank + 1) * part(rank).numpy() for rank in range(ranks)))


@EVERYWHERE
def test_operations_without_meaning_are_refused(group) -> None:
    for op, dtype, kind, words in [
        (ReduceOp.AVG, "int64", TypeError, "AVG needs a floating point tensor"),
        (ReduceOp.BAND, "float32", RuntimeError, "Cannot use ReduceOp.BAND with non-integral dtype"),
        (ReduceOp.MAX, "complex64", ValueError, r"all_reduce does not support ReduceOp.MAX on complex tensors"),
        (ReduceOp.PREMUL_SUM, "float32", ValueError, "needs a factor"),
        ("sum", "float32", TypeError, "expected a ReduceOp, got 'sum'"),
        (ddp._make_nccl_premul_sum(2), "int32", TypeError, "PREMUL_SUM needs a floating point tensor"),
    ]:
        with pytest.raises(kind, match=words):
            ddp.all_reduce(part(0, dtype), op)
    with pytest.raises(TypeError, match="all_reduce: expected a Tensor, got ndarray"):
        ddp.all_reduce(np.zeros(3))
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers"):
        ddp.all_reduce(engine.zeros(1).expand(3))


@EVERYWHERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "int8"])
def test_broadcast_and_reduce(group, ranks: int, dtype: str) -> None:
    root = ranks - 1
    for tensor in layouts(part(group.rank, dtype)).values():
        ddp.broadcast(tensor, root)
        assert np.array_equal(tensor.numpy(), part(root, dtype).numpy())
    total = np.sum([part(rank, dtype).numpy() for rank in range(ranks)], 0)
    for tensor in layouts(part(group.rank, dtype)).values():
        ddp.reduce(tensor, root)
        expected = total if group.rank == root else part(group.rank, dtype).numpy()
        assert np.array_equal(tensor.numpy(), expected.astype(tensor.numpy().dtype))


@EVERYWHERE
def test_all_gather(group, ranks: int) -> None:
    for tensor in layouts(part(group.rank)).values():
        found = [engine.empty(3, 2).t() if rank % 2 else engine.empty(2, 3) for rank in range(ranks)]
        ddp.all_gather(found, tensor)
        assert [values.tolist() for values in found] == [part(rank).tolist() for rank in range(ranks)]
        for shape in [(ranks * 2, 3), (ranks, 2, 3)]:
            whole = engine.empty(shape)
            ddp.all_gather_into_tensor(whole, tensor)
            assert np.array_equal(whole.numpy().reshape(ranks, 2, 3), [part(rank).numpy() for rank in range(ranks)])
    single = engine.empty(ranks)
    ddp.all_gather_into_tensor(single, engine.tensor(float(group.rank)))
    assert single.tolist() == list(range(ranks))


@EVERYWHERE
def test_gather_and_scatter(group, ranks: int) -> None:
    root = ranks - 1
    for tensor in layouts(part(group.rank)).values():
        found = [engine.empty(2, 3) for _ in range(ranks)] if group.rank == root else None
        ddp.gather(tensor, found, dst=root)
        for rank, values in enumerate(found or []):
            assert np.array_equal(values.numpy(), part(rank).numpy())
        sources = [part(10 + rank) for rank in range(ranks)] if group.rank == root else None
        ddp.scatter(tensor, sources, src=root)
        assert np.array_equal(tensor.numpy(), part(10 + group.rank).numpy())


@EVERYWHERE
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_reduce_scatter(group, ranks: int, dtype: str) -> None:
    expected = np.sum([part(10 * rank + group.rank, dtype).numpy().astype(np.float64) for rank in range(ranks)], 0)
    inputs = [part(10 * group.rank + to, dtype) for to in range(ranks)]
    for output in layouts(part(0, dtype)).values():
        ddp.reduce_scatter(output, inputs)
        assert np.array_equal(output.numpy().astype(np.float64), expected)
        for whole in (engine.cat(inputs), engine.stack(inputs)):
            output.zero_()
            ddp.reduce_scatter_tensor(output, whole)
            assert np.array_equal(output.numpy().astype(np.float64), expected)


@EVERYWHERE
def test_all_to_all(group, ranks: int) -> None:
    """From rank s to rank r go s + r + 1 rows."""
    inputs = [engine.full((group.rank + to + 1, 2), 10.0 * group.rank + to) for to in range(ranks)]
    outputs = [engine.empty(group.rank + source + 1, 2) for source in range(ranks)]
    ddp.all_to_all(outputs, inputs)
    for source, found in enumerate(outputs):
        assert (found == 10 * source + group.rank).all()
    joined = engine.empty(sum(len(rows) for rows in outputs), 2)
    sizes = [group.rank + other + 1 for other in range(ranks)]
    ddp.all_to_all_single(joined, engine.cat(inputs), sizes, sizes)
    assert engine.equal(joined, engine.cat(outputs))
    even = engine.empty(ranks)
    ddp.all_to_all_single(even, engine.arange(ranks) + 10.0 * group.rank)
    assert even.tolist() == [10.0 * source + group.rank for source in range(ranks)]


@EVERYWHERE
def test_split_sizes_must_add_up(group, ranks: int) -> None:
    for output, sizes, words in [
        (engine.empty(ranks + 1), None, "does not divide equally across group size"),
        (engine.empty(3), [3] * (ranks + 1), "Number of tensor splits not equal to group size"),
        (engine.empty(3), [4] + [0] * (ranks - 1), "doesn't match total dim 0 size"),
    ]:
        if ranks == 1 and sizes is None:
            continue  # anything can be divided by one
        with pytest.raises(RuntimeError, match=words):
            ddp.all_to_all_single(output, engine.empty(ranks), sizes)


@EVERYWHERE
def test_empty_and_single_tensors(group, ranks: int) -> None:
    """H33: no elements, no axes."""
    empty = engine.empty(0, 3)
    ddp.all_reduce(empty)
    ddp.broadcast(empty, 0)
    ddp.all_gather([engine.empty(0, 3) for _ in range(ranks)], empty)
    number = engine.tensor(float(group.rank))
    ddp.all_reduce(number, ReduceOp.MAX)
    assert number.item() == ranks - 1


@EVERYWHERE
def test_large_arrays_travel_in_pieces(group, ranks: int, monkeypatch) -> None:
    """The limit stands for the 2**31 elements that MPI can count."""
    monkeypatch.setattr(messages, "MESSAGE_BYTES", 32)
    tensor = part(group.rank, shape=(7, 5))
    ddp.all_reduce(tensor)
    assert np.array_equal(tensor.numpy(), sum(part(rank, shape=(7, 5)).numpy() for rank in range(ranks)))
    ddp.broadcast(tensor, 0)
    ddp.reduce(tensor, 0)
    found = [engine.empty(7, 5) for _ in range(ranks)]
    ddp.all_gather(found, part(group.rank, shape=(7, 5)))
    assert all(engine.equal(values, part(rank, shape=(7, 5))) for rank, values in enumerate(found))
    ddp.reduce_scatter(tensor, [part(rank, shape=(7, 5)) for rank in range(ranks)])
    assert engine.equal(tensor, ranks * part(group.rank, shape=(7, 5)))
    ddp.gather(part(group.rank, shape=(7, 5)), found if group.rank == 0 else None)
    ddp.all_to_all(found, [part(group.rank, shape=(7, 5)) for _ in range(ranks)])
    assert all(engine.equal(values, part(rank, shape=(7, 5))) for rank, values in enumerate(found))


@EVERYWHERE
def test_lists_and_shapes_are_checked(group, ranks: int) -> None:
    one, root = engine.zeros(2, 3), ranks - 1
    for call, kind, words in [
        (lambda: ddp.all_gather([one] * (ranks + 1), one), ValueError, f"tensor_list of {ranks} tensors, got"),
        (lambda: ddp.all_gather([engine.zeros(3)] * ranks, one), ValueError, r"\[0\]: expected shape \(2, 3\), got"),
        (lambda: ddp.all_gather([one.double()] * ranks, one), TypeError, "expected engine.float32, got engine.float64"),
        (lambda: ddp.all_gather(one, one), TypeError, "tensor_list as a list of tensors, got Tensor"),
        (lambda: ddp.all_gather_into_tensor(engine.zeros(5), one), ValueError, "expected output_tensor of shape"),
        (lambda: ddp.reduce_scatter_tensor(one, engine.zeros(7)), ValueError, "expected input of shape"),
        (lambda: ddp.gather(one, [one] * ranks if group.rank != root else None, root), ValueError, "and only there"),
        (lambda: ddp.broadcast(one, ranks), ValueError, f"rank {ranks} is not in the group"),
        (lambda: ddp.broadcast(one, 0, group_src=0), ValueError, "Can't specify both group_src and src"),
        (lambda: ddp.broadcast(one, group_src=ranks), ValueError, f"the group has ranks 0 to {root}"),
        (lambda: ddp.reduce(one), ValueError, "Must specify dst or group_dst"),
        (lambda: ddp.all_reduce(one, group="world"), TypeError, "expected a ProcessGroup, got str"),
    ]:
        with pytest.raises(kind, match=words):
            call()


@EVERYWHERE
def test_async_operations(group, ranks: int) -> None:
    tensors = [engine.full((1000,), float(group.rank + step)) for step in range(5)]
    works = [ddp.all_reduce(tensor, async_op=True) for tensor in tensors]
    gathered = [engine.empty(2) for _ in range(ranks)]
    works.append(ddp.all_gather(gathered, engine.full((2,), float(group.rank)), async_op=True))
    ddp.barrier()  # a blocking one in between
    order = works if group.rank % 2 else works[::-1]  # ranks may wait in different orders
    for work in order:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    for step, tensor in enumerate(tensors):
        assert (tensor == sum(rank + step for rank in range(ranks))).all()
    assert works[0].result()[0] is tensors[0]
    assert [found.tolist() for found in gathered] == [[rank, rank] for rank in range(ranks)]


@EVERYWHERE
def test_a_rank_may_wait_where_another_does_not(group, ranks: int) -> None:
    tensor = engine.ones(3)
    work = ddp.all_reduce(tensor, async_op=group.rank == 0)
    if work is not None:
        work.wait()
    assert (tensor == ranks).all()


@EVERYWHERE
def test_the_future_of_a_work(group, ranks: int) -> None:
    tensor = engine.ones(3)
    work = ddp.all_reduce(tensor, async_op=True)
    seen = []
    future = work.get_future()
    future.add_done_callback(lambda done: seen.append(done.value()[0]))
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert (doubled.wait() == 2 * ranks).all()
    assert future.done()
    assert seen[0] is tensor


@EVERYWHERE
def test_barrier(group) -> None:
    assert ddp.barrier() is None
    assert ddp.barrier(async_op=True).wait()


@EVERYWHERE
@pytest.mark.parametrize("async_op", [False, True])
def test_lists_of_tensors_together(group, ranks: int, async_op: bool) -> None:
    tensors = [part(group.rank), part(group.rank, "int64", (4,))]
    work = ddp.all_reduce_coalesced(tensors, async_op=async_op)
    if async_op:
        assert work.wait()
        assert work.is_success()
        assert work.result() == tensors
    for tensor, dtype, shape in zip(tensors, ("float32", "int64"), ((2, 3), (4,)), strict=True):
        assert np.array_equal(tensor.numpy(), sum(part(rank, dtype, shape).numpy() for rank in range(ranks)))
    lists = [[engine.empty(2, 3), engine.empty(4, dtype=engine.int64)] for _ in range(ranks)]
    work = ddp.all_gather_coalesced(lists, [part(group.rank), part(group.rank, "int64", (4,))], async_op=async_op)
    if async_op:
        assert work.wait()
    for rank, (first, second) in enumerate(lists):
        assert np.array_equal(first.numpy(), part(rank).numpy())
        assert np.array_equal(second.numpy(), part(rank, "int64", (4,)).numpy())


@EVERYWHERE
def test_wrong_lists_of_tensors(group, ranks: int) -> None:
    with pytest.raises(TypeError, match="all_reduce_coalesced: expected tensors as a list of tensors, got int"):
        ddp.all_reduce_coalesced(3)
    with pytest.raises(ValueError, match="all_reduce_coalesced: expected at least one tensor in tensors"):
        ddp.all_reduce_coalesced([])
    with pytest.raises(ValueError, match=rf"expected output_tensor_lists of {ranks} lists of 1 tensors, got lists of"):
        ddp.all_gather_coalesced([[part(0)]] * (ranks + 1), [part(0)])
