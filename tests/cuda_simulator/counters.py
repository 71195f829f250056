"""Counts of what a program asks of the device: `with counters() as count: ...; assert count.synchronizations == 0`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Counts:
    """What happened since the `with` statement. Transfers are counted by kind; `bytes` by the same kinds.

    synchronizations: the host waited for the device (`get`, `item`, `bool(array)`, `synchronize`, `nonzero`, a copy
    to or from pageable memory that the host waits for, cudaMalloc's and cudaFree's own are in `raw_allocations`).
    """

    synchronizations: int = 0
    pageable: int = 0
    pinned: int = 0
    peer: int = 0
    device_copies: int = 0
    launches: int = 0
    graph_launches: int = 0
    allocations: int = 0
    raw_allocations: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def transfer(self, kind: str, size: int) -> None:
        """One copy of `size` bytes: "pageable", "pinned", "peer" or "device_copies"."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.bytes[kind] = self.bytes.get(kind, 0) + size


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
