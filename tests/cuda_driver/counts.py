"""Counts of what a program asks of the device: `with counters() as count: ...; assert count.synchronizations == 0`."""

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
