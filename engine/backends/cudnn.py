"""Switches of cuDNN. It is not used here: there is no algorithm to choose among, and every result is deterministic.

They may be set, and are read by nobody.
"""

enabled = True
benchmark = False
deterministic = False
allow_tf32 = True


def is_available() -> bool:
    """False."""
    return False


def version() -> int | None:
    """None."""
    return None
