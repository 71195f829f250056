"""Switches of cuDNN. It is not used here: there is no algorithm to choose among, and every result is deterministic.

They may be set. `allow_tf32` is for convolutions of float32 on a GPU (engine/ops/conv/gpu.py). The others ask for what
is the case anyway (`deterministic`), or for what there is nothing of (`enabled`, `benchmark`): nobody reads them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

enabled = True
benchmark = False
benchmark_limit = 10
deterministic = False
allow_tf32 = True


def is_available() -> bool:
    """False."""
    return False


def version() -> int | None:
    """None."""
    return None


def is_acceptable(tensor: Any) -> bool:
    """False: no tensor is given to cuDNN."""
    return False


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
) -> Iterator[None]:
    """Context manager: the switches have these values inside."""
    given = dict(locals())
    before = {name: globals()[name] for name in given}
    globals().update(given)
    try:
        yield
    finally:
        globals().update(before)
