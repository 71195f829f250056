"""What writes checkpoints, and is told of lost ranks."""

from typing import Protocol
from weakref import WeakKeyDictionary


class Keeper(Protocol):
    """What writes checkpoints."""

    def leave_behind(self) -> None:
        """Collective over the ranks that are left: what was being written will not be complete."""
        ...

    def save_last(self, step: int) -> str:
        """Collective: writes one of this step now. Returns where, in words."""
        ...


keepers: WeakKeyDictionary[Keeper, None] = WeakKeyDictionary()
"""Of this process, in the order in which they were made, alike on every rank."""
