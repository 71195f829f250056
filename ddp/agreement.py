"""Do all ranks hold the same model? Compared before anything is summed: a difference is an error, not a hang."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class TensorLayout(NamedTuple):
    """What must be equal on all ranks for one parameter or buffer. `stride` in elements, `dtype` by its short name."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype} with strides {self.stride}"


class Replica(NamedTuple):
    """What one rank brings to a DistributedDataParallel."""

    problem: str
    """Why this rank cannot take part; usually empty."""
    options: dict[str, Any]
    parameters: Sequence[TensorLayout]
    trainable: Sequence[TensorLayout]
    buffers: Sequence[TensorLayout]


def find_difference(layouts: Sequence[Sequence[TensorLayout]]) -> str | None:
    """The first difference between the ranks' lists (one per rank, in rank order) in words, or None.

    First is the lowest position at which any rank differs from rank 0; every rank that differs there is named.
    """
    reference = layouts[0]
    for position in range(max(map(len, layouts))):
        expected = _at(reference, position)
        others: dict[TensorLayout | None, list[int]] = {}
        for rank, layout in enumerate(layouts):
            if _at(layout, position) != expected:
                others.setdefault(_at(layout, position), []).append(rank)
        if others:
            return "; ".join(_describe(ranks, found, expected) for found, ranks in others.items()) + _counts(layouts)
    return None


def check_replicas(mine: Replica, exchange: Callable[[Replica], list[Replica]]) -> None:
    """Collective: raises on every rank when the ranks' replicas are not alike, with the same words.

    exchange: gives every rank's replica, in rank order.
    Raises RuntimeError when a rank has a problem of its own; ValueError when options, parameters or buffers differ.
    """
    replicas = exchange(mine)
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


def name_ranks(ranks: Sequence[int]) -> str:
    """In words: `rank 3`, `ranks 1, 2`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def _at(layout: Sequence[TensorLayout], position: int) -> TensorLayout | None:
    return layout[position] if position < len(layout) else None


def _describe(ranks: list[int], found: TensorLayout | None, expected: TensorLayout | None) -> str:
    who = f"{name_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'}"
    if found is None:
        return f"{who} no {expected}, which rank 0 has"
    if expected is None:
        return f"{who} {found}, which rank 0 has not"
    if found.name == expected.name:
        changed = [field for field in ("shape", "stride", "dtype") if getattr(found, field) != getattr(expected, field)]
        if changed == ["dtype"]:
            return f"{who} {found.name} as {found.dtype} where rank 0 has {expected.dtype}"
        if changed == ["stride"]:
            return f"{who} {found.name} {found.shape} with strides {found.stride} where rank 0 has {expected.stride}"
        return f"{who} {found.name} {found.shape} {found.dtype} where rank 0 has {expected.shape} {expected.dtype}"
    return f"{who} {found} where rank 0 has {expected}"


def _counts(layouts: Sequence[Sequence[TensorLayout]]) -> str:
    counts = [len(layout) for layout in layouts]
    return f" (tensors per rank: {counts})" if len(set(counts)) > 1 else ""
