"""Collectives on tensors that only move them, in torch.distributed's names: gather, scatter, all-to-all.

The rules are those of `ddp.collectives`.
"""

from collections.abc import Callable, Sequence

import numpy as np

import engine
from ddp.collectives.members import check_list, check_stacked, list_at_root, members_of, number_in_group
from ddp.collectives.wire import (
    apart,
    check_tensor,
    elements,
    elements_like,
    in_shape,
    landing,
    layout_of,
    overlap,
    rows_in_place,
    settle,
    store,
)
from ddp.execution.calls import Call
from ddp.execution.collective import run
from ddp.execution.layouts import TensorLayout
from ddp.execution.messages import Messages, keep
from ddp.execution.work import Work
from ddp.groups.process_group import ProcessGroup
from engine.calls.effects import effect
from engine.rules.layout import contiguous_strides


@effect
def all_gather(
    tensor_list: list[engine.Tensor],
    tensor: engine.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Fills `tensor_list` with the tensors of all ranks."""
    members = members_of("all_gather", group)
    if members is None:
        return None
    check_tensor("all_gather", tensor)
    check_list("all_gather", "tensor_list", tensor_list, members, tensor)
    parts = [landing(target, tensor) for target in tensor_list]
    own = apart(elements(tensor), parts, members.rank)

    def finish() -> None:
        if members.size() == 1:
            keep(own, parts[0])
        for target, part in zip(tensor_list, parts, strict=True):
            settle(target, part, tensor)

    call = Call("all_gather", (), (layout_of(tensor),))
    return run(members, call, lambda messages: messages.collect(own, parts), finish, list(tensor_list), async_op)


@effect
def all_gather_into_tensor(
    output_tensor: engine.Tensor,
    input_tensor: engine.Tensor,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Fills `output_tensor`, of shape (ranks * n, ...) or (ranks, n, ...), with the (n, ...) tensors of all ranks."""
    members = members_of("all_gather_into_tensor", group)
    if members is None:
        return None
    name = "all_gather_into_tensor"
    check_stacked(name, "output_tensor", output_tensor, "input_tensor", input_tensor, members)
    in_place = rows_in_place(output_tensor, input_tensor, members.size())
    shape = members.size(), input_tensor.numel()
    parts = list(np.empty(shape, input_tensor.dtype.numpy) if in_place is None else in_place)
    own = apart(elements(input_tensor), parts, members.rank)

    def finish() -> None:
        if members.size() == 1:
            keep(own, parts[0])
        if in_place is None:
            stacked = np.stack([in_shape(part, input_tensor) for part in parts])
            store(output_tensor, stacked.reshape(tuple(output_tensor.shape)))
        else:
            settle(output_tensor, in_place.reshape(-1), output_tensor)

    call = Call(name, (), (layout_of(input_tensor),))
    return run(members, call, lambda messages: messages.collect(own, parts), finish, [output_tensor], async_op)


@effect
def gather(
    tensor: engine.Tensor,
    gather_list: list[engine.Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Fills `gather_list` of rank `dst`, by default 0, with the tensors of all ranks."""
    members = members_of("gather", group)
    if members is None:
        return None
    check_tensor("gather", tensor)
    root = number_in_group("gather", members, "dst", dst, group_dst, 0)
    targets = list_at_root("gather", "gather_list", gather_list, members, root)
    parts: list[np.ndarray] = []
    own = elements(tensor)
    if members.rank == root:
        check_list("gather", "gather_list", targets, members, tensor)
        parts = [landing(target, tensor) for target in targets]
        own = apart(own, parts, root)

    def move(messages: Messages) -> None:
        if members.rank == root:
            messages.swap([], [(source, part) for source, part in enumerate(parts) if source != root])
        else:
            messages.swap([(root, own)], [])

    def finish() -> None:
        if members.rank == root:
            keep(own, parts[root])
        for target, part in zip(targets, parts, strict=True):
            settle(target, part, tensor)

    call = Call("gather", (("dst", members.ranks[root]),), (layout_of(tensor),))
    return run(members, call, move, finish, list(targets), async_op)


@effect
def scatter(
    tensor: engine.Tensor,
    scatter_list: list[engine.Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> Work | None:
    """Gives each rank, in its `tensor`, its entry of the list of rank `src`, by default 0."""
    members = members_of("scatter", group)
    if members is None:
        return None
    check_tensor("scatter", tensor, written=True)
    root = number_in_group("scatter", members, "src", src, group_src, 0)
    sources = list_at_root("scatter", "scatter_list", scatter_list, members, root)
    parts: list[np.ndarray] = []
    values = landing(tensor, tensor)
    if members.rank == root:
        check_list("scatter", "scatter_list", sources, members, tensor)
        parts = [elements_like(part, tensor) for part in sources]

    def move(messages: Messages) -> None:
        if members.rank == root:
            messages.swap([(to, part) for to, part in enumerate(parts) if to != root], [])
        else:
            messages.swap([], [(root, values)])

    def finish() -> None:
        if members.rank == root:
            values[...] = parts[root]
        settle(tensor, values, tensor)

    call = Call("scatter", (("src", members.ranks[root]),), (layout_of(tensor),))
    return run(members, call, move, finish, [tensor], async_op)


@effect
def all_to_all(
    output_tensor_list: list[engine.Tensor],
    input_tensor_list: Sequence[engine.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Entry r of the inputs goes to rank r; entry s of the outputs comes from rank s. Shapes may differ by pair."""
    members = members_of("all_to_all", group)
    if members is None:
        return None
    check_list("all_to_all", "output_tensor_list", output_tensor_list, members)
    check_list("all_to_all", "input_tensor_list", input_tensor_list, members)
    mine = members.rank
    sends = [elements(part) for part in input_tensor_list]
    receives = _apart_from(sends, [landing(part, part) for part in output_tensor_list])

    def finish() -> None:
        keep(sends[mine], receives[mine])
        for target, values in zip(output_tensor_list, receives, strict=True):
            settle(target, values, target)

    call = Call(
        "all_to_all",
        sends=tuple(layout_of(part) for part in input_tensor_list),
        expects=tuple(layout_of(part) for part in output_tensor_list),
    )
    if members.size() == 1 and call.sends != call.expects:
        raise ValueError(f"all_to_all: expected an output like the input, {call.sends[0]}, got {call.expects[0]}")
    return run(members, call, _swap_all(members, sends, receives), finish, list(output_tensor_list), async_op)


@effect
def all_to_all_single(
    output: engine.Tensor,
    input: engine.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Rows of `input` go to the ranks in turn, `input_split_sizes` of them to each; `output` is filled likewise.

    Without sizes all ranks get equally many. Raises RuntimeError for sizes that do not add up, as PyTorch does.
    """
    members = members_of("all_to_all_single", group)
    if members is None:
        return None
    check_tensor("all_to_all_single", output, written=True)
    check_tensor("all_to_all_single", input)
    whole = _row_major(output)
    sends = _split_rows(_row_major(input), input_split_sizes, members)
    outputs = _split_rows(whole, output_split_sizes, members)
    flat = [part.reshape(-1) for part in sends]
    receives = _apart_from(flat, [part.reshape(-1) for part in outputs])
    mine = members.rank

    def finish() -> None:
        keep(flat[mine], receives[mine])
        for values, part in zip(receives, outputs, strict=True):
            keep(values.reshape(part.shape), part)
        if output.is_contiguous():
            settle(output, whole.reshape(-1), output)
        else:
            store(output, whole.reshape(tuple(output.shape)))

    call = Call(
        "all_to_all_single",
        sends=tuple(_layout_of_rows(part, input.dtype) for part in sends),
        expects=tuple(_layout_of_rows(part, output.dtype) for part in outputs),
    )
    if members.size() == 1 and call.sends != call.expects:
        raise ValueError(f"all_to_all_single: expected an output of {call.sends[0]}, got {call.expects[0]}")
    return run(members, call, _swap_all(members, flat, receives), finish, [output], async_op)


def _apart_from(sends: list[np.ndarray], receives: list[np.ndarray]) -> list[np.ndarray]:
    """Where to receive: room elsewhere where `receives` shares memory with what is sent."""
    return [np.empty_like(part) for part in receives] if overlap(sends, receives) else receives


def _row_major(tensor: engine.Tensor) -> np.ndarray:
    """Its rows, (n, ...): the tensor's own memory where it is contiguous and on the host, else a copy."""
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())
    return array.reshape(tensor.shape[0] if tensor.dim() else 1, *tensor.shape[1:])


def _layout_of_rows(rows: np.ndarray, dtype: engine.dtype) -> TensorLayout:
    return TensorLayout("rows", rows.shape, contiguous_strides(rows.shape), dtype.name)


def _split_rows(rows: np.ndarray, sizes: list[int] | None, members: ProcessGroup) -> list[np.ndarray]:
    """Parts along the first dimension, one a rank."""
    ranks, length = members.size(), len(rows)
    if not sizes:
        if length % ranks:
            raise RuntimeError(
                f"all_to_all_single: Tensor's dim 0 does not divide equally across group size: {length} and {ranks}"
            )
        sizes = [length // ranks] * ranks
    if len(sizes) != ranks:
        raise RuntimeError(f"all_to_all_single: Number of tensor splits not equal to group size: {sizes} and {ranks}")
    if sum(sizes) != length or min(sizes) < 0:
        raise RuntimeError(f"all_to_all_single: Split sizes doesn't match total dim 0 size: {sizes} and {length}")
    ends = np.cumsum(sizes)
    return [rows[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _swap_all(members: ProcessGroup, sends: list[np.ndarray], receives: list[np.ndarray]) -> Callable[[Messages], None]:
    def move(messages: Messages) -> None:
        others = [rank for rank in range(members.size()) if rank != members.rank]
        messages.swap([(rank, sends[rank]) for rank in others], [(rank, receives[rank]) for rank in others])

    return move
