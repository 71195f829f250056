"""What tests ask of the driver: orders of threads, checks of every access, faults, what it found, what it counted."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests import cuda_driver
from tests.cuda_driver import mpi
from tests.cuda_driver.counts import Counts


class ProblemError(AssertionError):
    """What a device would answer with an error, a hang or wrong numbers: a race, an access outside, an illegal call."""


@contextmanager
def watched() -> Iterator[None]:
    """There are devices inside. Problems that no call reported, or whose report somebody swallowed, are raised at its
    end.

    Raises: ProblemError.
    """
    cuda_driver.load()
    take_problems()
    try:
        with mpi.watched():
            yield
        raise_problems()
    finally:
        cuda_driver.hide()


def raise_problems() -> None:
    """Raises ProblemError with what was found and not taken, once all that is under way is done."""
    driver = cuda_driver.driver()
    gc.collect(1)
    driver.driver_finish()  # what a test leaves under way is not the next one's race
    found = take_problems()
    if found:
        raise ProblemError("\n".join(dict.fromkeys(found)))


def take_problems() -> list[str]:
    """What was found since the last call."""
    return _lines("driver_take_problems")


class _Counts(Counts):
    """Looked at, it has what the driver wrote down until then."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            _read_journal()
        return super().__getattribute__(name)


_counting: list[Counts] = []


@contextmanager
def counters() -> Iterator[Counts]:
    """Counts while it is open; may be nested. Launches and copies of a graph's replay are not counted one by one,
    allocations from CuPy's pool not at all."""
    driver = cuda_driver.driver()
    _read_journal()
    if not _counting:
        driver.driver_keep_journal(1)
    counts = _Counts()
    _counting.append(counts)
    try:
        yield counts
    finally:
        _read_journal()
        _counting[:] = [each for each in _counting if each is not counts]
        if not _counting:
            driver.driver_keep_journal(0)


def _read_journal() -> None:
    """Lines are "launch NAME", "wait CALL", "copy KIND BYTES", "malloc BYTES", "graph"."""
    for line in _lines("driver_take_journal") if _counting else ():
        kind, _, rest = line.partition(" ")
        for counts in _counting:
            if kind == "launch":
                counts.launches += 1
                counts.names.append(rest)
            elif kind == "wait":
                counts.synchronizations += 1
                counts.waits.append(rest)
            elif kind == "copy":
                where, size = rest.split()
                counts.transfer(where, int(size))
            elif kind == "malloc":
                counts.raw_allocations += 1
            else:
                counts.graph_launches += 1


@contextmanager
def checked(seed: int = 0) -> Iterator[None]:
    """Accesses of threads of one grid to the same byte, one of them a write, have to be ordered inside."""
    driver = cuda_driver.driver()
    driver.driver_check(1)
    try:
        with order(seed):
            yield
    finally:
        driver.driver_check(0)


@contextmanager
def order(seed: int) -> Iterator[None]:
    """Threads and blocks of kernels launched inside take turns in a permuted order; 0: in theirs."""
    driver = cuda_driver.driver()
    driver.driver_order(ctypes.c_ulonglong(seed))
    try:
        yield
    finally:
        driver.driver_order(ctypes.c_ulonglong(0))


def full() -> AbstractContextManager[None]:
    """Devices have no more memory than the current one has in use as this opens."""
    return _set("driver_fill", 1, 0)


def without_mapping() -> AbstractContextManager[None]:
    """Other processes' memory cannot be opened inside."""
    return _set("driver_map", 0, 1)


@contextmanager
def _set(function: str, inside: int, outside: int) -> Iterator[None]:
    switch = getattr(cuda_driver.driver(), function)
    switch(inside)
    try:
        yield
    finally:
        switch(outside)


def _lines(function: str) -> list[str]:
    driver, size = cuda_driver.driver(), 1 << 16
    while True:
        text = ctypes.create_string_buffer(size)
        needed = getattr(driver, function)(text, ctypes.c_size_t(size))
        if not needed:
            return text.value.decode().splitlines()
        size = needed
