"""Waiting for another thread, or process, without the interpreter's lock."""

from collections.abc import Callable
from functools import cache

from engine.kernels.jit import helper, kernel
from engine.kernels.language import add_at, number_at, read_byte, relax


@cache
def compiled_wait() -> Callable[[int, int, int, int], int]:
    """A function of the address of an int64 that somebody else raises, of the number that it is to reach, of how often
    to look, and of how many looks to wait longer when it has: whether it has. It holds no lock of the interpreter, and
    leaves the core to its other thread.
    """
    return _wait_for["d"]


@cache
def compiled_sleep() -> Callable[[int, int, int, int, int, int], int]:
    """The same, and when it has looked so often it sleeps, until :func:`compiled_post` says how many to wake. Two more
    arguments: the address of the number of those who sleep, and a file's descriptor, from which each takes a byte when
    it wakes. 0 where it could not sleep: there is no such file any more, or a signal came.
    """
    return _sleep_until["d"]


@cache
def compiled_post() -> Callable[[int, int], int]:
    """A function of the addresses of a number that is waited for and of that of those who sleep: raises the first, and
    returns the second. It is up to the caller to write so many bytes to their file, or fewer.
    """
    return _post["d"]


@helper
def _reached(where: int, number: int, looks: int) -> bool:
    while number_at(where) < number:
        if looks == 0:
            return False
        looks -= 1
        relax()
    return True


@kernel
def _wait_for(where: int, number: int, looks: int, after: int) -> int:
    if not _reached(where, number, looks):
        return 0
    for _ in range(after):
        relax()
    return 1


@kernel
def _sleep_until(where: int, number: int, looks: int, after: int, sleepers: int, descriptor: int) -> int:
    while not _reached(where, number, looks):
        add_at(sleepers, 1)  # who raises the number after this sees it, and wakes; who did before is seen here
        woken = read_byte(descriptor) if number_at(where) < number else 1
        add_at(sleepers, -1)
        if woken < 1:
            return 0
        looks = 0
    for _ in range(after):
        relax()
    return 1


@kernel(brief=True)
def _post(where: int, sleepers: int) -> int:
    add_at(where, 1)
    return add_at(sleepers, 0)
