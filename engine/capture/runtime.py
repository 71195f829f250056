"""What a captured step calls while it is replayed, besides kernels."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.autograd import accumulate, gradients
from engine.autograd.modes import state
from engine.autograd.node import Edge, Node
from engine.autograd.task import GraphTask
from engine.rules.spec import Spec
from engine.tensor import Tensor


class CapturedStep(Node):
    """What stands for the history of a tensor that a replay returns: there is none, and backward says so."""

    __slots__ = ()

    def __init__(self, spec: Spec) -> None:
        super().__init__((), (), (spec,))

    def name(self) -> str:
        return "CapturedStep"

    def apply(self, gradients: list[Any], recorded: bool, edges: Sequence[Edge | None] | None = None) -> Sequence[Any]:
        raise RuntimeError(
            "this tensor was returned by a step that engine.compile replays, which records no graph: call backward() "
            "inside the step"
        )


def watched(meta: Any) -> bool:
    """Whether somebody waits for the gradient of this leaf."""
    return meta.destination_of is not None or meta.listener is not None or bool(meta.post_accumulate)


def _references_of_local() -> int:
    """What `sys.getrefcount` says of an object that only one local variable holds."""
    local = np.empty(1)
    return sys.getrefcount(local)


def begin_backward(leaves: dict[Node, int]) -> tuple[GraphTask, bool]:
    """What hooks and listeners see of a backward: the task that runs, which leaves it reaches, and how often."""
    task = GraphTask((), False, False)
    task.dependencies = leaves
    before = state.grad_enabled
    state.grad_enabled = False
    state.tasks.append(task)
    return task, before


def end_backward(task: GraphTask) -> None:
    """What was queued for the end of backward."""
    for callback in task.callbacks:
        callback()


def fail_backward(task: GraphTask) -> None:
    """What was queued for a backward that fails."""
    for callback in task.on_error:
        callback()


def leave_backward(before: bool) -> None:
    """Undoes `begin_backward`; `before` is the grad mode it found."""
    state.grad_enabled = before
    state.tasks.pop()


def _read_grad(tensor: Tensor) -> Any:
    gradient = tensor.grad
    if gradient is None:
        raise RuntimeError("the captured step reads a .grad that is None now; when it was recorded there was one")
    return gradient._array


def _write_at(view: Any, key: tuple[Any, ...], value: Any, accumulate: bool) -> None:
    if accumulate:
        np.add.at(view, key, value)
    else:
        view[key] = value


def returned(array: Any, spec: Spec, node: CapturedStep | None) -> Tensor:
    """A tensor that a step returns; `node` where eager execution would have recorded a history."""
    tensor = Tensor(array, spec)
    if node is not None:
        tensor._requires_grad, tensor._grad_fn, tensor._output_nr = True, node, 0
    return tensor


NAMESPACE = {
    "state": state,
    "Tensor": Tensor,
    "begin": begin_backward,
    "end": end_backward,
    "fail": fail_backward,
    "leave": leave_backward,
    "fit": gradients.fit,
    "add_into": gradients.add_into,
    "offered": accumulate.offered,
    "read_grad": _read_grad,
    "write_at": _write_at,
    "references": sys.getrefcount,
    "alone": _references_of_local(),
    "result": returned,
    "empty": np.empty,
}
