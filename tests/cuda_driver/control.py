"""What tests ask of the driver: orders of threads, checks of every access, what it found, what it counted."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from tests import cuda_driver


class ProblemError(AssertionError):
    """What a device would answer with an error, a hang or wrong numbers: a race, an access outside, an illegal call."""


@contextmanager
def watched() -> Iterator[None]:
    """Problems inside that no call reported, or whose report somebody swallowed, are raised at its end.

    Raises: ProblemError.
    """
    driver = cuda_driver.load()
    take_problems()
    yield
    gc.collect(1)
    driver.driver_finish()  # what a test leaves under way is not the next one's race
    found = take_problems()
    if found:
        raise ProblemError("\n".join(dict.fromkeys(found)))


def take_problems() -> list[str]:
    """What was found since the last call."""
    return _lines("driver_take_problems")


@contextmanager
def journal() -> Iterator[list[str]]:
    """What the program asks of the device while it is open, filled at its end: "launch NAME", "wait CALL",
    "copy KIND BYTES", "malloc BYTES", "graph"."""
    driver = cuda_driver.load()
    lines: list[str] = []
    driver.driver_keep_journal(1)
    try:
        yield lines
    finally:
        lines += _lines("driver_take_journal")
        driver.driver_keep_journal(0)


@contextmanager
def checked(seed: int = 0) -> Iterator[None]:
    """Accesses of threads of one grid to the same byte, one of them a write, have to be ordered inside."""
    driver = cuda_driver.load()
    driver.driver_check(1)
    try:
        with order(seed):
            yield
    finally:
        driver.driver_check(0)


@contextmanager
def order(seed: int) -> Iterator[None]:
    """Threads and blocks of kernels launched inside take turns in a permuted order; 0: in theirs."""
    driver = cuda_driver.load()
    driver.driver_order(ctypes.c_ulonglong(seed))
    try:
        yield
    finally:
        driver.driver_order(ctypes.c_ulonglong(0))


def _lines(function: str) -> list[str]:
    driver, size = cuda_driver.load(), 1 << 16
    while True:
        text = ctypes.create_string_buffer(size)
        needed = getattr(driver, function)(text, ctypes.c_size_t(size))
        if not needed:
            return text.value.decode().splitlines()
        size = needed
