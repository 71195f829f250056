"""Collectives on tensors, in torch.distributed's names: sums and their like, broadcast, barrier.

Every rank of the group calls the same functions in the same order, with tensors of one shape, dtype and layout: the
ranks compare this before bytes move, and all of them raise where it differs (`ddp.execution.calls`). What one rank can
tell by itself (a wrong root, a list of wrong length) it raises at once.

A dense tensor travels in the order of its memory, whatever that is, another one in row-major order
(`ddp.collectives.wire`). float16 and bfloat16 are summed in float32. With `async_op=True` a function returns a `Work`;
its tensors belong to it until `wait`. `src` and `dst` are numbers in the world, `group_src` and `group_dst` in the
group. A rank that is not in the group is warned and does nothing. All this is true of `ddp.collectives.redistribution`,
too.
"""

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np

import engine
from ddp.collectives.members import check_list, check_stacked, members_of, number_in_group
from ddp.collectives.reductions import Op, ReduceOp, after, before, check_reduction, mpi_operation
from ddp.collectives.wire import check_tensor, elements, elements_like, landing, layout_of, rows_of, settle
from ddp.execution.calls import Call
from ddp.execution.collective import run
from ddp.execution.messages import Messages
from ddp.execution.work import Work
from ddp.groups.process_group import ProcessGroup
from engine.calls.effects import effect


@effect
def all_reduce(
    tensor: engine.Tensor, op: Op = ReduceOp.SUM, group: ProcessGroup | None = None, async_op: bool = False
) -> Work | None:
    """Combines the tensors of all ranks, in place, on every rank."""
    members = members_of("all_reduce", group)
    if members is None:
        return None
    check_tensor("all_reduce", tensor, written=True)
    check_reduction("all_reduce", op, tensor.dtype)
    own = elements(tensor)
    values = before(op, own)

    def move(messages: Messages) -> None:
        messages.combine(values, mpi_operation(op, own.dtype))

    def finish() -> None:
        settle(tensor, after(op, values, members.size(), own.dtype), tensor)

    call = Call("all_reduce", (("op", op.name),), (layout_of(tensor),))
    return run(members, call, move, finish, [tensor], async_op)


@effect
def reduce(
    tensor: engine.Tensor,
    dst: int | None = None,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combines the tensors of all ranks into that of rank `dst`; the others stay as they are."""
    members = members_of("reduce", group)
    if members is None:
        return None
    check_tensor("reduce", tensor, written=True)
    check_reduction("reduce", op, tensor.dtype)
    root = number_in_group("reduce", members, "dst", dst, group_dst, None)
    own = elements(tensor)
    values = before(op, own)

    def move(messages: Messages) -> None:
        messages.combine_at(values, mpi_operation(op, own.dtype), root)

    def finish() -> None:
        if members.rank == root:
            settle(tensor, after(op, values, members.size(), own.dtype), tensor)

    call = Call("reduce", (("op", op.name), ("dst", members.ranks[root])), (layout_of(tensor),))
    return run(members, call, move, finish, [tensor], async_op)


@effect
def broadcast(
    tensor: engine.Tensor,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Every rank's tensor becomes that of rank `src`."""
    members = members_of("broadcast", group)
    if members is None:
        return None
    check_tensor("broadcast", tensor, written=True)
    root = number_in_group("broadcast", members, "src", src, group_src, 0)
    values = elements(tensor)

    def move(messages: Messages) -> None:
        messages.spread(values, root)

    def finish() -> None:
        settle(tensor, values, tensor)

    call = Call("broadcast", (("src", members.ranks[root]),), (layout_of(tensor),))
    return run(members, call, move, finish, [tensor], async_op)


@effect
def reduce_scatter(
    output: engine.Tensor,
    input_list: Sequence[engine.Tensor],
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combines entry r of all ranks' lists into the output of rank r."""
    members = members_of("reduce_scatter", group)
    if members is None:
        return None
    check_tensor("reduce_scatter", output, written=True)
    check_list("reduce_scatter", "input_list", input_list, members, output)
    rows = [before(op, elements_like(part, output)) for part in input_list]
    return _reduce_scatter("reduce_scatter", output, rows, op, members, async_op)


@effect
def reduce_scatter_tensor(
    output: engine.Tensor,
    input: engine.Tensor,
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combines part r of all ranks' inputs, of shape (ranks * n, ...) or (ranks, n, ...), into rank r's (n, ...)."""
    members = members_of("reduce_scatter_tensor", group)
    if members is None:
        return None
    check_stacked("reduce_scatter_tensor", "input", input, "output", output, members)
    rows = [before(op, row) for row in rows_of(input, output, members.size())]
    return _reduce_scatter("reduce_scatter_tensor", output, rows, op, members, async_op)


def _reduce_scatter(
    name: str, output: engine.Tensor, rows: list[np.ndarray], op: Op, members: ProcessGroup, async_op: bool
) -> Work | None:
    check_reduction(name, op, output.dtype)
    dtype = output.dtype.numpy
    own = landing(output, output)
    if members.size() == 1:
        own = rows[0]
    elif own.dtype != rows[0].dtype or any(np.may_share_memory(own, row) for row in rows):
        own = np.empty_like(rows[0])

    def move(messages: Messages) -> None:
        messages.combine_rows(rows, own, mpi_operation(op, dtype))

    def finish() -> None:
        settle(output, after(op, own, members.size(), dtype), output)

    call = Call(name, (("op", op.name),), (layout_of(output),))
    return run(members, call, move, finish, [output], async_op)


@effect
def barrier(
    group: ProcessGroup | None = None,
    async_op: bool = False,
    device_ids: Any = None,
    timeout: datetime.timedelta | None = None,
) -> Work | None:
    """Returns when all ranks have called it. `device_ids` has no meaning here.

    Raises RuntimeError when `timeout` is over before; without one the group's ends the job.
    """
    members = members_of("barrier", group)
    if members is None:
        return None
    if async_op or timeout is None:
        return run(members, Call("barrier"), async_op=async_op)
    work = run(members, Call("barrier"), async_op=True)
    assert work is not None
    work.wait(timeout)
    return None
