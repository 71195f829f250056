"""Who waits for whom, seen from a thread of each rank: what it does (progress), in a record (record), where that is
written (board), what it means (verdict), what is said of it (telling), and what follows (watchdog).
"""

from ddp.watching.progress import DEFAULT_TIMEOUT, Channel, Meeting, begin_wait, current_wait, end_wait
from ddp.watching.starting import limited

__all__ = [
    "DEFAULT_TIMEOUT",
    "Channel",
    "Meeting",
    "begin_wait",
    "current_wait",
    "end_wait",
    "limited",
]
