"""Switches of cuDNN. It is not used here: there is no algorithm to choose among, and every result is deterministic.

They may be set. `allow_tf32` is for convolutions of float32 on a GPU (engine/ops/conv_cuda.py); nobody reads the rest.
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
