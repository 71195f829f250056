"""A step on the rows of a table that have a gradient, where that is sparse: the formula on these rows, copied out and
back.
"""

from typing import TYPE_CHECKING

import engine
from engine.tensor import Tensor
from engine.tensor.sparse import SparseTensor

if TYPE_CHECKING:
    from engine.optim.optimizer import Group, Optimizer


def step_rows(optimizer: "Optimizer", group: "Group", param: Tensor, gradient: SparseTensor) -> None:
    """One update of the rows of `param` in host memory at the coordinates of its gradient; rows that meet are summed.

    Raises: RuntimeError where the optimizer has no such step (`Optimizer.check_rows`).
    """
    optimizer.check_rows(group)
    if param.is_cuda:
        raise RuntimeError(f"{type(optimizer).__name__}: sparse gradients are for parameters in host memory")
    state = optimizer.state[param]
    if not state:
        state |= {"step": engine.tensor(0.0)} if optimizer.counts_steps else {}
        state |= {name: engine.full_like(param.detach(), initial) for name, initial in optimizer.start(group).items()}
    if optimizer.counts_steps:
        state["step"] += 1
    step = int(state["step"]) if optimizer.counts_steps else 2
    gradient = gradient.coalesce()
    place = tuple(gradient.indices().numpy())
    held = [param, *(state[name] for name in optimizer.start(group))]
    rows = [tensor._array[place] for tensor in held]
    names = tuple(optimizer.start(group))
    optimizer.update(group, step, rows[0], gradient.values()._array, dict(zip(names, rows[1:], strict=True)))
    for tensor, changed in zip(held, rows, strict=True):
        tensor._array[place] = changed
        tensor._bump_version(type(optimizer).__name__)


def refusal(optimizer: "Optimizer", reason: str = "") -> RuntimeError:
    """The error of an optimizer that has no step on rows."""
    return RuntimeError(
        f"{type(optimizer).__name__} does not support sparse gradients{reason}; SparseAdam does, and SGD and Adagrad "
        "without weight_decay and momentum, or make the Embedding with sparse=False"
    )
