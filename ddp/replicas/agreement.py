"""Do all ranks hold the same model? Compared before anything is summed: a difference is an error, not a hang."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from ddp.execution.layouts import TensorLayout, find_difference


class Replica(NamedTuple):
    """What one rank brings to a DistributedDataParallel."""

    problem: str
    """Why this rank cannot take part; usually empty."""
    options: dict[str, Any]
    parameters: Sequence[TensorLayout]
    trainable: Sequence[TensorLayout]
    buffers: Sequence[TensorLayout]


def check_replicas(mine: Replica, exchange: Callable[[Any], list[Any]]) -> None:
    """Collective: raises on every rank when the ranks' replicas are not alike, with the same words.

    exchange: gives every rank's value, in rank order. A digest goes first: the replicas of 8,192 ranks of a ResNet-50
    have 127 MB of names and shapes, which each of them would get.
    Raises RuntimeError when a rank has a problem of its own; ValueError when options, parameters or buffers differ.
    """
    if len({*exchange(blake2b(repr(mine).encode(), digest_size=16).digest())}) == 1 and not mine.problem:
        return
    replicas: list[Replica] = exchange(mine)
    for rank, replica in enumerate(replicas):
        if replica.problem:
            raise RuntimeError(f"DistributedDataParallel cannot be made: rank {rank} says: {replica.problem}")
    for rank, replica in enumerate(replicas):
        for name, expected in replicas[0].options.items():
            if replica.options[name] != expected:
                raise ValueError(
                    f"DistributedDataParallel: {name} differs between ranks: rank {rank} has {replica.options[name]} "
                    f"where rank 0 has {expected}"
                )
    for what, layouts in (
        ("parameters", [replica.parameters for replica in replicas]),
        ("parameters that require grad", [replica.trainable for replica in replicas]),
        ("buffers", [replica.buffers for replica in replicas]),
    ):
        difference = find_difference(layouts)
        if difference is not None:
            raise ValueError(
                f"DistributedDataParallel: {what} differ between ranks: {difference}; "
                "build the same model on every rank"
            )
