"""Waiting for another thread, or process, without the interpreter's lock."""

from collections.abc import Callable
from functools import cache

from engine.kernels.jit import kernel
from engine.kernels.language import number_at, relax


@cache
def compiled_wait() -> Callable[[int, int, int, int], int]:
    """A function of the address of an int64 that somebody else raises, of the number that it is to reach, of how often
    to look, and of how many looks to wait longer when it has: whether it has. It holds no lock of the interpreter, and
    leaves the core to its other thread.
    """
    return _wait_for["d"]


@kernel
def _wait_for(where: int, number: int, looks: int, after: int) -> int:
    while number_at(where) < number:
        if looks == 0:
            return 0
        looks -= 1
        relax()
    while after > 0:
        after -= 1
        relax()
    return 1
