"""What writes checkpoints, is told of lost ranks, and knows what a process gets that replaces one."""

from typing import Any, Protocol
from weakref import WeakKeyDictionary


class Keeper(Protocol):
    """What writes checkpoints."""

    def leave_behind(self) -> None:
        """Collective over the ranks that are left: what was being written will not be complete."""
        ...

    def relocate(self) -> None:
        """The same where not all ranks have made it yet: nothing was."""
        ...

    def save_last(self, step: int) -> str:
        """Collective: writes one of this step now. Returns where, in words."""
        ...

    def holds(self, thing: object) -> bool:
        """Whether this is among what checkpoints hold."""
        ...

    def give(self) -> Any:
        """What checkpoints would hold now, to be pickled."""
        ...

    def take(self, given: Any) -> None:
        """Takes over what another rank's has given."""
        ...


keepers: WeakKeyDictionary[Keeper, None] = WeakKeyDictionary()
"""Of this process, in the order in which they were made, alike on every rank."""
