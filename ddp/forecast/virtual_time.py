"""Many ranks in one process, in virtual time: what a step takes on a link that is not here, by running it.

    def step():
        net = ddp.DistributedDataParallel(model)
        ...
        work(0.01)  # wherever the program would work for so long, in backward too
        return now()

    run_in_virtual_time(1024, step, parse_link("25gbit,2us"), Software(20e-6, 1e-10, 1e-6))

Each rank has a clock. The program's own work and messages move it on, nothing else does: what Python takes costs
nothing. The rank whose clock is furthest behind runs (`ddp.testing.turns`), so whoever looks whether something has come
knows of everything that was sent before. The code that communicates is that of a job: Reducer, planner, transport.

What a rank posts of a collective of P ranks takes its thread (P - 2) `peer` seconds and then `byte` for each byte that
it sends. These go through its link meanwhile, one collective after the other; `message` and the latency later they
arrive. A rank has what it needs when all have sent, and what it receives has passed its own link. A message between two
ranks goes between the packets of what is on its way, as connections share a link. So this says how the messages of
`ddp.forecast.network` follow one another, and what waits for what, but takes its word for what one costs.

Each rank is on a node of its own. Looking takes no time: a loop of looks without a wait would never end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ddp.forecast.network import Link, Software
from ddp.groups.group import is_initialized, resolve
from ddp.testing.communicator import Comm
from ddp.testing.rooms import Meeting, Slices
from ddp.testing.running import run_on
from ddp.testing.turns import Turns
from ddp.transport.mpi import MpiTransport

T = TypeVar("T")


class Traffic(NamedTuple):
    """What a rank has posted of one kind, a collective or `Send`: how many, and bytes to and from other ranks."""

    calls: int
    sent: int
    received: int

    def less(self, before: "Traffic") -> "Traffic":
        """What came since."""
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))


NO_TRAFFIC = Traffic(0, 0, 0)


class VirtualNetwork:
    """What messages take: see the module, and `ddp.testing.rooms.Network`. traffic: of each rank, by kind."""

    def __init__(self, turns: Turns, link: Link, software: Software) -> None:
        self._turns = turns
        self._link = link
        self._software = software
        self._delay = software.message + link.latency
        self._sends = [_Way() for _ in range(turns.size)]
        self._receives = [_Way() for _ in range(turns.size)]
        self._sending: dict[int, tuple[float, float]] = {}  # of each open meeting: when the first begins, the last ends
        self.traffic: list[dict[str, Traffic]] = [{} for _ in range(turns.size)]

    def contribute(self, meeting: Meeting, rank: int, part: Any) -> None:
        """See `ddp.testing.rooms.Network`."""
        number, size = meeting.members[rank], len(meeting.members)
        nbytes = _sent(meeting.name, part, rank, size)
        self._count(number, meeting.name, 1, nbytes, 0)
        begin, end = self._post(number, size, nbytes)
        first, last = self._sending.get(id(meeting), (begin, end))
        self._sending[id(meeting)] = min(first, begin), max(last, end)

    def complete(self, meeting: Meeting) -> None:
        """See `ddp.testing.rooms.Network`."""
        first, last = self._sending.pop(id(meeting))
        meeting.times, bandwidth = [], self._link.among(len(meeting.members)).bandwidth
        for number, nbytes in zip(meeting.members, _received(meeting.name, meeting.parts), strict=True):
            self._count(number, meeting.name, 0, 0, nbytes)
            _, passed = self._receives[number].behind(first + self._delay, nbytes / bandwidth)
            meeting.times.append(max(passed, last + self._delay))

    def send(self, source: int, target: int, nbytes: int) -> float:
        """See `ddp.testing.rooms.Network`."""
        clock, travel = self._turns.clocks[source], nbytes / self._link.bandwidth
        self._turns.clocks[source] = done = clock + nbytes * self._software.byte
        self._count(source, "Send", 1, nbytes, 0)
        self._count(target, "Send", 0, 0, nbytes)
        begin, end = self._sends[source].between(clock, travel)
        _, passed = self._receives[target].between(begin + self._delay, travel)
        return max(passed, max(end, done) + self._delay)

    def _count(self, number: int, name: str, calls: int, sent: int, received: int) -> None:
        before = self.traffic[number].get(name, NO_TRAFFIC)
        self.traffic[number][name] = Traffic(before.calls + calls, before.sent + sent, before.received + received)

    def _post(self, number: int, ranks: int, nbytes: int) -> tuple[float, float]:
        """When the bytes begin to go through the rank's link, and when all have."""
        clock = self._turns.clocks[number] + (ranks - 2) * self._software.peer
        self._turns.clocks[number] = done = clock + nbytes * self._software.byte
        way = self._sends[number]
        begin, end = way.behind(clock, nbytes / self._link.among(ranks).bandwidth)
        way.collectives = end = max(end, done)
        return begin, end


@dataclass(slots=True)
class _Way:
    """One direction of a rank's link: until when collectives, and messages between two ranks, go through it."""

    collectives: float = 0.0
    messages: float = 0.0

    def behind(self, time: float, travel: float) -> tuple[float, float]:
        """When something begins to go through, and when it has, that waits for all before it."""
        begin = max(time, self.collectives)
        self.collectives = begin + travel
        return begin, self.collectives

    def between(self, time: float, travel: float) -> tuple[float, float]:
        """The same of a message, which goes between the packets of a collective, so that this one takes longer."""
        begin = max(time, self.messages)
        self.messages = begin + travel
        self.collectives = max(self.collectives, begin) + travel
        return begin, self.messages


def _sent(name: str, part: Any, rank: int, size: int) -> int:
    """Bytes that a rank sends to others. What is combined goes twice, in slices; what one rank has is passed on from
    rank to rank; all else goes straight to whom it is for.
    """
    if isinstance(part, Slices):
        return sum(part.counts) - part.counts[rank]
    if isinstance(part, np.ndarray):
        return 2 * part.nbytes * (size - 1) // size
    if isinstance(part, list):
        return sum(map(len, part)) - len(part[rank])
    if part is None:
        return 0
    return len(part) * (1 if name in ("Bcast", "bcast") else size - 1)


def _received(name: str, parts: list[Any]) -> list[int]:
    """Bytes that each rank receives of others."""
    size = len(parts)
    if isinstance(parts[0], Slices):
        counts = np.array([part.counts for part in parts])
        received: list[int] = (counts.sum(axis=0) - counts.diagonal()).tolist()
        return received
    if isinstance(parts[0], np.ndarray):
        return [_sent(name, part, rank, size) for rank, part in enumerate(parts)]
    if any(isinstance(part, list) for part in parts):
        (root,) = (rank for rank, part in enumerate(parts) if part is not None)
        return [0 if rank == root else len(content) for rank, content in enumerate(parts[root])]
    lengths = [0 if part is None else len(part) for part in parts]
    return [sum(lengths) - length for length in lengths]


def run_in_virtual_time(
    size: int, function: Callable[[], T], link: Link, software: Software, timeout: float = 600.0
) -> list[T]:
    """Runs `function()` on `size` ranks as `ddp.testing.run_ranks` does, over the transport `mpi`, which is not checked
    first. Returns what each has returned.

    timeout: seconds of real time. Raises: ValueError for fewer than two ranks; what `run_ranks` raises.
    """
    if size < 2:
        raise ValueError(f"run_in_virtual_time: expected at least two ranks, got {size}")
    turns = Turns(size, timeout)
    return run_on(turns, function, VirtualNetwork(turns, link, software), MpiTransport)


def work(seconds: float) -> None:
    """This rank works for so long, in virtual time. Raises: RuntimeError outside of `run_in_virtual_time`."""
    comm = _own_comm()
    comm.turns.clocks[comm.number] += seconds


def now() -> float:
    """What this rank's clock shows, in seconds. Raises: RuntimeError outside of `run_in_virtual_time`."""
    comm = _own_comm()
    return comm.turns.clocks[comm.number]


def traffic() -> dict[str, Traffic]:
    """What this rank has posted so far, by kind: MPI's names, where small letters mean pickled objects.

    Raises: RuntimeError outside of `run_in_virtual_time`.
    """
    comm = _own_comm()
    assert isinstance(comm.network, VirtualNetwork)
    return dict(comm.network.traffic[comm.number])


def _own_comm() -> Comm:
    comm = resolve(None).comm if is_initialized() else None
    if not isinstance(comm, Comm) or comm.network is None:
        raise RuntimeError("there is virtual time only inside of run_in_virtual_time")
    return comm
