"""Collectives that autograd sees: they return new tensors, and backward sends the gradients the opposite way.

What is differentiated is the sum of all ranks' losses: rank r's gradient is the derivative of that sum with respect to
what rank r has put in. The derivative of a collective is a collective, so backward, and a backward of that, must be run
on every rank of the group, in the same order, also where the result is of no use. Source: the transposes of the
collectives as linear maps.

`src` and `dst` are numbers in the world. SUM, AVG and premultiplied sums have derivatives; other operations raise
ValueError where one is wanted.
"""

from collections.abc import Sequence
from typing import Any

import engine
from ddp import collectives
from ddp.collectives import redistribution
from ddp.collectives.reductions import Op, PremulSum, ReduceOp
from ddp.groups.group import get_group_rank, resolve
from ddp.groups.process_group import ProcessGroup
from engine.autograd import Function


def all_reduce(tensor: engine.Tensor, op: Op = ReduceOp.SUM, group: ProcessGroup | None = None) -> engine.Tensor:
    """The combination of all ranks' tensors, on every rank."""
    return _AllReduce.apply(tensor, op, resolve(group))


def broadcast(tensor: engine.Tensor, src: int, group: ProcessGroup | None = None) -> engine.Tensor:
    """The tensor of rank `src`, on every rank. `tensor` gives shape and dtype on the others."""
    return _Broadcast.apply(tensor, src, resolve(group))


def reduce(tensor: engine.Tensor, dst: int, op: Op = ReduceOp.SUM, group: ProcessGroup | None = None) -> engine.Tensor:
    """The combination of all ranks' tensors on rank `dst`; elsewhere zeros, which no gradient comes from."""
    return _Reduce.apply(tensor, dst, op, resolve(group))


def all_gather(tensor: engine.Tensor, group: ProcessGroup | None = None) -> tuple[engine.Tensor, ...]:
    """The tensors of all ranks, on every rank."""
    return _AllGather.apply(tensor, resolve(group))


def gather(tensor: engine.Tensor, dst: int = 0, group: ProcessGroup | None = None) -> tuple[engine.Tensor, ...]:
    """The tensors of all ranks on rank `dst`; elsewhere zeros, which no gradient comes from."""
    return _Gather.apply(tensor, dst, resolve(group))


def scatter(tensors: Sequence[engine.Tensor], src: int = 0, group: ProcessGroup | None = None) -> engine.Tensor:
    """This rank's entry of the list of rank `src`. The other ranks' lists give shape and dtype."""
    return _Scatter.apply(src, resolve(group), *tensors)


def reduce_scatter(
    output: engine.Tensor,
    input_list: Sequence[engine.Tensor],
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
) -> engine.Tensor:
    """The combination of entry r of all ranks' lists, on rank r. `output` gives shape and layout."""
    return _ReduceScatter.apply(op, resolve(group), output, *input_list)


def all_to_all(
    output_tensor_list: Sequence[engine.Tensor],
    input_tensor_list: Sequence[engine.Tensor],
    group: ProcessGroup | None = None,
) -> tuple[engine.Tensor, ...]:
    """Entry s is what rank s has in its inputs for this one. The outputs given tell shapes."""
    return _AllToAll.apply(resolve(group), tuple(output_tensor_list), *input_tensor_list)


def all_to_all_single(
    output: engine.Tensor,
    input: engine.Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: ProcessGroup | None = None,
) -> engine.Tensor:
    """Rows of `input` to all ranks, see `ddp.all_to_all_single`. `output` gives the shape."""
    return _AllToAllSingle.apply(resolve(group), output, output_split_sizes, input_split_sizes, input)


# As functions of autograd: each one's backward is another one ---------------------------------------------------------


def _check_linear(name: str, op: Op) -> None:
    if op not in (ReduceOp.SUM, ReduceOp.AVG) and not isinstance(op, PremulSum):
        raise ValueError(f"{name}: {op.name} has no derivative here; expected SUM, AVG or a premultiplied sum")


def _scaled_back(gradient: engine.Tensor, op: Op, group: ProcessGroup) -> engine.Tensor:
    """From the gradient of a sum to that of what AVG or a premultiplied sum adds up."""
    if isinstance(op, PremulSum):
        factor = op.factor.item() if isinstance(op.factor, engine.Tensor) else op.factor
        return gradient * (factor.conjugate() if isinstance(factor, complex) else factor)
    return gradient / group.size() if op is ReduceOp.AVG else gradient


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: engine.Tensor, op: Op, group: ProcessGroup) -> engine.Tensor:
        if ctx.needs_input_grad[0]:
            _check_linear("all_reduce", op)
        ctx.op, ctx.group = op, group
        result = tensor.clone()
        collectives.all_reduce(result, op, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> Any:
        total = _AllReduce.apply(gradient, ReduceOp.SUM, ctx.group)
        return _scaled_back(total, ctx.op, ctx.group), None, None


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: engine.Tensor, src: int, group: ProcessGroup) -> engine.Tensor:
        ctx.src, ctx.group = src, group
        result = tensor.clone()
        collectives.broadcast(result, src, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> Any:
        return _Reduce.apply(gradient, ctx.src, ReduceOp.SUM, ctx.group), None, None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, tensor: engine.Tensor, dst: int, op: Op, group: ProcessGroup) -> engine.Tensor:
        if ctx.needs_input_grad[0]:
            _check_linear("reduce", op)
        ctx.dst, ctx.op, ctx.group = dst, op, group
        result = tensor.clone()
        collectives.reduce(result, dst, op, group)
        return result if group.rank == get_group_rank(group, dst) else result.zero_()

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> Any:
        given = _Broadcast.apply(gradient, ctx.dst, ctx.group)
        return _scaled_back(given, ctx.op, ctx.group), None, None, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: engine.Tensor, group: ProcessGroup) -> tuple[engine.Tensor, ...]:
        ctx.group = group
        results = [engine.empty_like(tensor) for _ in range(group.size())]
        redistribution.all_gather(results, tensor, group)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: engine.Tensor) -> Any:
        return _ReduceScatter.apply(ReduceOp.SUM, ctx.group, gradients[ctx.group.rank], *gradients), None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: engine.Tensor, dst: int, group: ProcessGroup) -> tuple[engine.Tensor, ...]:
        ctx.dst, ctx.group = dst, group
        results = [engine.zeros_like(tensor) for _ in range(group.size())]
        redistribution.gather(tensor, results if group.rank == get_group_rank(group, dst) else None, dst, group)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: engine.Tensor) -> Any:
        return _Scatter.apply(ctx.dst, ctx.group, *gradients), None, None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, src: int, group: ProcessGroup, *tensors: engine.Tensor) -> engine.Tensor:
        ctx.src, ctx.group = src, group
        if len(tensors) != group.size():
            raise ValueError(f"scatter: expected a list of {group.size()} tensors, got {len(tensors)}")
        result = engine.empty_like(tensors[group.rank])
        is_source = group.rank == get_group_rank(group, src)
        redistribution.scatter(result, list(tensors) if is_source else None, src, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> Any:
        return None, None, *_Gather.apply(gradient, ctx.src, ctx.group)


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, op: Op, group: ProcessGroup, output: engine.Tensor, *tensors: engine.Tensor) -> engine.Tensor:
        if any(ctx.needs_input_grad[3:]):
            _check_linear("reduce_scatter", op)
        ctx.op, ctx.group = op, group
        result = engine.empty_like(output)
        collectives.reduce_scatter(result, list(tensors), op, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> Any:
        gathered = _AllGather.apply(gradient, ctx.group)
        return None, None, None, *(_scaled_back(part, ctx.op, ctx.group) for part in gathered)


class _AllToAll(Function):
    @staticmethod
    def forward(
        ctx: Any, group: ProcessGroup, outputs: tuple[engine.Tensor, ...], *inputs: engine.Tensor
    ) -> tuple[engine.Tensor, ...]:
        ctx.group = group
        ctx.inputs = tuple(tensor.detach() for tensor in inputs)  # of which only the shapes are used
        results = [engine.empty_like(tensor) for tensor in outputs]
        redistribution.all_to_all(results, inputs, group)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: engine.Tensor) -> Any:
        return None, None, *_AllToAll.apply(ctx.group, ctx.inputs, *gradients)


class _AllToAllSingle(Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: ProcessGroup,
        output: engine.Tensor,
        output_split_sizes: list[int] | None,
        input_split_sizes: list[int] | None,
        input: engine.Tensor,
    ) -> engine.Tensor:
        ctx.group, ctx.input = group, input.detach()
        ctx.sizes = input_split_sizes, output_split_sizes
        result = engine.empty_like(output)
        redistribution.all_to_all_single(result, input, output_split_sizes, input_split_sizes, group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> Any:
        return None, None, None, None, _AllToAllSingle.apply(ctx.group, ctx.input, *ctx.sizes, gradient)
