"""What ranks compare of their tensors before bytes move, and the first difference between them in words."""

from collections.abc import Sequence
from typing import NamedTuple

from ddp.world.ranks import name_ranks


class TensorLayout(NamedTuple):
    """What must be equal on all ranks for one parameter or buffer. `stride` in elements, `dtype` by its short name."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype} with strides {self.stride}"


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
