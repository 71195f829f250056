"""Ranks in words."""

from collections.abc import Sequence


def name_ranks(ranks: Sequence[int]) -> str:
    """In words: `rank 3`, `ranks 1, 2`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"
