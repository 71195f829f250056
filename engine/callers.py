"""Where a user's code called the engine: what warnings point at."""

import os
import sys

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def stack_level() -> int:
    """The `stacklevel` with which a warning by the caller of this function points at the first code outside the
    engine.
    """
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    return level
