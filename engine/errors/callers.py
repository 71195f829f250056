"""Where a user's code called the engine: what warnings point at, and what tracebacks show."""

import os
import sys

GENERATED = "<engine: "
"""How the file names of code begin that the engine writes itself; it has no lines to show."""

INTERNAL = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""), GENERATED]
"""How the file names of frames begin that are not a user's. `ddp` adds its own."""


def stack_level() -> int:
    """The `stacklevel` with which a warning by the caller of this function points at the first code outside the
    engine.
    """
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(tuple(INTERNAL)):
        frame = frame.f_back
        level += 1
    return level
