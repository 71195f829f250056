"""The collectives of a group as its methods, in the names of PyTorch's ProcessGroup. Hooks in its documentation say so:

    group.allreduce([tensor]).get_future().then(lambda future: future.value()[0])

All of them return a `Work` at once. Ranks (`root`, `dst`, `src`) are numbers in the group. Where PyTorch has an object
with options (AllreduceOptions), an operation or a root is given here.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import engine

if TYPE_CHECKING:
    from ddp.collectives.reductions import Op
    from ddp.execution.work import Work
    from ddp.groups.process_group import ProcessGroup

Tensors = engine.Tensor | Sequence[engine.Tensor]


class Methods:
    """What `ddp.ProcessGroup` has of them."""

    __slots__ = ()

    def allreduce(self, tensors: Tensors, op: "Op | None" = None) -> "Work":
        """As `all_reduce`, of one tensor or a list."""
        from ddp.collectives.coalesced import all_reduce_coalesced

        return _under_way(all_reduce_coalesced(_list(tensors), _or_sum(op), _group(self), async_op=True))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Tensors, root: int = 0) -> "Work":
        """As `broadcast`."""
        from ddp.collectives.sums import broadcast

        return _under_way(broadcast(_one("broadcast", tensors), group=_group(self), async_op=True, group_src=root))

    def reduce(self, tensors: Tensors, root: int = 0, op: "Op | None" = None) -> "Work":
        """As `reduce`."""
        from ddp.collectives.sums import reduce

        return _under_way(reduce(_one("reduce", tensors), None, _or_sum(op), _group(self), True, group_dst=root))

    def allgather(self, output_tensors: Any, input_tensors: Tensors) -> "Work":
        """As `all_gather`; output_tensors: a list, or a list of one list."""
        from ddp.collectives.redistribution import all_gather

        into = output_tensors[0] if output_tensors and not isinstance(output_tensors[0], engine.Tensor) else None
        given = _one("allgather", input_tensors)
        return _under_way(all_gather(output_tensors if into is None else into, given, _group(self), async_op=True))

    def _allgather_base(self, output: engine.Tensor, input: engine.Tensor) -> "Work":
        """As `all_gather_into_tensor`."""
        from ddp.collectives.redistribution import all_gather_into_tensor

        return _under_way(all_gather_into_tensor(output, input, _group(self), async_op=True))

    def reduce_scatter(self, output_tensors: Tensors, input_tensors: Any, op: "Op | None" = None) -> "Work":
        """As `reduce_scatter`; input_tensors: a list, or a list of one list."""
        from ddp.collectives.sums import reduce_scatter

        given = input_tensors if isinstance(input_tensors[0], engine.Tensor) else input_tensors[0]
        return _under_way(
            reduce_scatter(_one("reduce_scatter", output_tensors), given, _or_sum(op), _group(self), True)
        )

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> "Work":
        """As `isend`."""
        from ddp.collectives.point_to_point import isend

        return _under_way(isend(_one("send", tensors), group=_group(self), tag=tag, group_dst=dst))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> "Work":
        """As `irecv`."""
        from ddp.collectives.point_to_point import irecv

        return _under_way(irecv(_one("recv", tensors), group=_group(self), tag=tag, group_src=src))

    def barrier(self) -> "Work":
        """As `barrier`."""
        from ddp.collectives.sums import barrier

        return _under_way(barrier(_group(self), async_op=True))


def _group(methods: Methods) -> "ProcessGroup":
    return cast("ProcessGroup", methods)


def _list(tensors: Tensors) -> list[engine.Tensor]:
    return [tensors] if isinstance(tensors, engine.Tensor) else list(tensors)


def _one(name: str, tensors: Tensors) -> engine.Tensor:
    found = _list(tensors)
    if len(found) != 1:
        raise ValueError(f"ProcessGroup.{name}: expected one tensor, or a list of one, got {len(found)}")
    return found[0]


def _or_sum(op: "Op | None") -> "Op":
    from ddp.collectives.reductions import ReduceOp

    return ReduceOp.SUM if op is None else op


def _under_way(work: "Work | None") -> "Work":
    assert work is not None
    return work
