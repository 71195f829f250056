"""The naive average of every gradient, one collective a parameter: slow, obvious, and the oracle of the tests."""

from collections.abc import Iterable

import engine
from ddp.collectives import all_reduce
from ddp.groups.group import get_world_size
from ddp.groups.process_group import ProcessGroup


def average_gradients(parameters: Iterable[engine.Tensor], group: ProcessGroup | None = None) -> None:
    """Replaces each gradient by its mean over the ranks; a rank without one takes part with zeros."""
    for parameter in parameters:
        if parameter.grad is None:
            like = parameter.detach()  # laid out as a gradient would be
            parameter.grad = engine.zeros_like(like if like.is_non_overlapping_and_dense() else like.contiguous())
        all_reduce(parameter.grad, group=group)
        parameter.grad.div_(get_world_size(group))
