"""Collectives on lists of tensors, as `torch.distributed.all_reduce_coalesced`: one handle for all of them."""

import datetime
from collections.abc import Sequence

import engine
from ddp.collectives.members import members_of
from ddp.collectives.redistribution import all_gather
from ddp.collectives.reductions import Op, ReduceOp
from ddp.collectives.sums import all_reduce
from ddp.execution.work import Work
from ddp.groups.process_group import ProcessGroup


class _Together(Work):
    """Several collectives under way."""

    def __init__(self, label: str, works: Sequence[Work], results: list[engine.Tensor]) -> None:
        super().__init__(label, results)
        self._works = works

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        self._over = True
        return True

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def is_completed(self) -> bool:
        self._over = self._over or all(work.is_completed() for work in self._works)
        return self._over

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None


def all_reduce_coalesced(
    tensors: engine.Tensor | Sequence[engine.Tensor],
    op: Op = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combines each of these tensors over all ranks, in place. They may differ in shape and dtype."""
    members = members_of("all_reduce_coalesced", group)
    if members is None:
        return None
    chosen = _checked("all_reduce_coalesced", "tensors", tensors)
    works = [all_reduce(tensor, op, members, async_op=True) for tensor in chosen]
    return _result("all_reduce_coalesced", works, chosen, async_op)


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[engine.Tensor]],
    input_tensor_list: Sequence[engine.Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Rank r's tensors come into list r on every rank."""
    members = members_of("all_gather_coalesced", group)
    if members is None:
        return None
    given = _checked("all_gather_coalesced", "input_tensor_list", input_tensor_list)
    lists = [_checked("all_gather_coalesced", "output_tensor_lists", one) for one in output_tensor_lists]
    if len(lists) != members.size() or any(len(one) != len(given) for one in lists):
        raise ValueError(
            f"all_gather_coalesced: expected output_tensor_lists of {members.size()} lists of {len(given)} tensors, "
            f"got lists of {[len(one) for one in lists]}"
        )
    works = [
        all_gather([one[index] for one in lists], part, members, async_op=True) for index, part in enumerate(given)
    ]
    return _result("all_gather_coalesced", works, [tensor for one in lists for tensor in one], async_op)


def _checked(name: str, what: str, tensors: object) -> list[engine.Tensor]:
    found = [tensors] if isinstance(tensors, engine.Tensor) else tensors
    if not isinstance(found, list | tuple) or not all(isinstance(tensor, engine.Tensor) for tensor in found):
        raise TypeError(f"{name}: expected {what} as a list of tensors, got {type(tensors).__name__}")
    if not found:
        raise ValueError(f"{name}: expected at least one tensor in {what}")
    return list(found)


def _result(name: str, works: Sequence[Work | None], results: list[engine.Tensor], async_op: bool) -> Work | None:
    together = _Together(name, [work for work in works if work is not None], results)
    if async_op:
        return together
    together.wait()
    return None
