"""How far a long save or load is: a line on standard error now and then, on one rank."""

import sys
import time

from ddp.groups.process_group import ProcessGroup

_QUIET = 5.0  # seconds without a word; shorter ones are none's concern
_PERIOD = 5.0  # seconds between words


class Progress:
    """Told of bytes; `doing` is what is done with them, `total` how many there are on this rank.

    awaited: whether somebody waits for it; where nobody does, nothing is said.
    """

    def __init__(self, group: ProcessGroup, doing: str, total: int) -> None:
        self._speaks = group.rank == 0
        self._doing, self._total = doing, total
        self._done = 0
        self.awaited = True
        self._next = time.monotonic() + _QUIET

    def __call__(self, count: int) -> None:
        self._done += count
        if self._speaks and self.awaited and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PERIOD
            print(
                f"checkpoint: {self._doing}: {self._done / 1e9:.1f} of {self._total / 1e9:.1f} GB of rank 0",
                file=sys.stderr,
                flush=True,
            )
