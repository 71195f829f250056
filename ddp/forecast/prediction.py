"""From what was measured to a step on so many nodes: pure arithmetic."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddp.forecast.network import Link, Software, chain_seconds, chain_work, exchange_seconds, exchange_work

_MATTERS = 0.03  # share of a step from which on something limits it


@dataclass(frozen=True, slots=True)
class Workload:
    """A step of a script as it was measured, in seconds.

    own: how long a rank worked, in the mean. noise: by how much the ranks differed from that in the same step.
    buckets: after how much work of a rank each was full, and its bytes, in the order of their sums. local: what the sum
    of so many bytes over the ranks of one node takes. ranks: of a node. step: the mean of all that a step took.
    """

    own: float
    noise: Sequence[float]
    buckets: Sequence[tuple[float, int]]
    local: Mapping[int, float]
    ranks: int
    step: float


class Prediction(NamedTuple):
    """A step on so many nodes, in seconds: own work, the wait for the slowest rank, and what sums add.

    efficiency: the own work's share. limit: what to better first, in words.
    """

    nodes: int
    ranks: int
    seconds: float
    own: float
    slowest: float
    exposed: float
    efficiency: float
    limit: str


def expected_slowest(samples: Sequence[float], count: int) -> float:
    """The mean of the largest of `count` numbers that are drawn from the samples."""
    size = len(samples)
    return math.fsum(
        value * (((place + 1) / size) ** count - (place / size) ** count) for place, value in enumerate(sorted(samples))
    )


def exposed_seconds(workload: Workload, nodes: int, link: Link, software: Software) -> float:
    """By how much sums make a step longer: by what is left of them when the last gradient is there, and by the rank's
    own work for those before it. Each begins when the one before is over.
    """
    free = worked = end = 0.0
    for full, nbytes in workload.buckets:
        seconds, work = _between_nodes(nbytes, nodes, workload.ranks, link, software)
        end = full + worked
        free = max(free, end) + workload.local.get(nbytes, 0.0) + seconds
        worked += work
    return max(free, end) - workload.buckets[-1][0]


def _between_nodes(nbytes: int, nodes: int, ranks: int, link: Link, software: Software) -> tuple[float, float]:
    """Of a sum: its seconds, and those of a rank's own work in it."""
    if nodes == 1:
        return 0.0, 0.0
    if ranks == 1:  # the transports that `ddp.transport.choose_transport` takes
        return exchange_seconds(nbytes, nodes, link, software), exchange_work(nbytes, nodes, software)
    return chain_seconds(nbytes, nodes, ranks, link, software), chain_work(nbytes, ranks, software)


def predict(workload: Workload, nodes: int, link: Link, software: Software) -> Prediction:
    """A step of the workload on so many nodes, each behind such a link."""
    ranks, own = nodes * workload.ranks, workload.own
    slowest = expected_slowest(workload.noise, ranks)
    exposed = exposed_seconds(workload, nodes, link, software)
    seconds = own + slowest + exposed
    without: dict[str, tuple[Workload, Link, Software]] = {
        "bandwidth of the link": (workload, Link(math.inf, link.latency), software),
        "latency of the link": (workload, Link(link.bandwidth, 0.0), software),
        "software of the messages": (workload, link, Software(0.0, 0.0, 0.0)),
        "sums within a node": (replace(workload, local={}), link, software),
    }
    saved = {
        name: exposed - exposed_seconds(other, nodes, wire, cost) for name, (other, wire, cost) in without.items()
    } | {"the slowest rank": slowest}
    limit = max(saved, key=saved.__getitem__)
    if slowest + exposed < _MATTERS * seconds:
        limit = "own work"
    return Prediction(nodes, ranks, seconds, own, slowest, exposed, own / seconds, limit)
