"""Waiting for what other processes write to memory: look again at once, then let others run, then sleep.

The steps are counted, a look costs about a microsecond. To yield on a machine that others use, too, costs their time
slice: two ranks summed 4 MiB in 8 ms after 50 spins.
"""

import os
import time

SPINS = 2000
_YIELDS = 20_000
_SLEEP = 100e-6  # seconds


def pause(looks: int, spins: int = SPINS) -> None:
    """After so many looks in vain. spins: none where ranks outnumber cores: the one waited for may need this core."""
    if looks > spins + _YIELDS:
        time.sleep(_SLEEP)
    elif looks > spins:
        os.sched_yield()
