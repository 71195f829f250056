"""Counts of what a program asks of the device: `with counters() as count: ...; assert count.synchronizations == 0`."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cuda_driver.counts import Counts

_active: list[Counts] = []


@contextmanager
def counters() -> Iterator[Counts]:
    """Counts while it is open; may be nested."""
    counts = Counts()
    _active.append(counts)
    try:
        yield counts
    finally:
        _active[:] = [each for each in _active if each is not counts]


def count(name: str, amount: int = 1) -> None:
    """Adds to the field `name` of all open counters."""
    for counts in _active:
        setattr(counts, name, getattr(counts, name) + amount)


def waited(what: str) -> None:
    """The host waited for the device; `waits` says for what and where."""
    from tests.cuda_simulator import races

    for counts in _active:
        counts.synchronizations += 1
        counts.waits.append(f"{what} at {races.place()}")


def launched(name: str) -> None:
    """One kernel was queued; `names` lists them in order."""
    for counts in _active:
        counts.launches += 1
        counts.names.append(name)


def transferred(kind: str, size: int) -> None:
    """One copy of `size` bytes."""
    for counts in _active:
        counts.transfer(kind, size)
