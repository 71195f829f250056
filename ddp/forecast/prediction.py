"""From what was measured to a step on so many nodes: pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ddp.forecast.network import Link, Software, chain_seconds, chain_work, exchange_seconds, exchange_work
from ddp.gradients.plan import choose_limits
from ddp.transport import timing
from ddp.transport.timing import SumTimes

NO_TIME = SumTimes(0.0, 0.0)
_MATTERS = 0.03  # share of a step from which on something limits it


@dataclass(frozen=True, slots=True)
class Workload:
    """A step of a script as it was measured, in seconds.

    own: how long a rank worked, in the mean. noise: by how much the ranks differed from that in the same step.
    gradients: after how much work of a rank each was there, and its bytes, in that order. local: of a sum over the
    ranks of one node. ranks: of a node. step: the mean of all that a step took. limits: of the buckets, in bytes; None
    where the size is chosen for the network.
    """

    own: float
    noise: Sequence[float]
    gradients: Sequence[tuple[float, int]]
    local: SumTimes
    ranks: int
    step: float
    limits: Sequence[int] | None = None


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


def buckets(gradients: Sequence[tuple[float, int]], limits: Sequence[int]) -> list[tuple[float, int]]:
    """When each bucket is full, and its bytes, as `ddp.gradients.plan` fills them."""
    found: list[tuple[float, int]] = []
    filled = 0
    for time, nbytes in gradients:
        filled += nbytes
        if filled >= limits[min(len(found), len(limits) - 1)]:
            found.append((time, filled))
            filled = 0
    return [*found, (gradients[-1][0], filled)] if filled else found


def exposed_seconds(workload: Workload, nodes: int, link: Link, software: Software) -> float:
    """By how much sums make a step longer: by what is left of them when the last gradient is there, and by the rank's
    own work for those before it. Each begins when the one before is over.
    """
    sum_of = partial(_sum_seconds, nodes=nodes, ranks=workload.ranks, link=link, software=software)
    limits = workload.limits
    if limits is None:  # as they are when the model is wrapped there
        few, many = timing.SMALLEST, timing.LARGEST
        least, most = sum_of(few)[0], sum_of(many)[0]
        times = SumTimes(least, (most - least) / (many - few)) if nodes > 1 else None
        limits = choose_limits(sum(nbytes for _, nbytes in workload.gradients), times)
    free = worked = end = 0.0
    for full, nbytes in buckets(workload.gradients, limits):
        seconds, work = sum_of(nbytes)
        end = full + worked
        free = max(free, end) + seconds + (workload.local.seconds + nbytes * workload.local.byte)
        worked += work
    return max(free, end) - workload.gradients[-1][0]


def _sum_seconds(nbytes: int, nodes: int, ranks: int, link: Link, software: Software) -> tuple[float, float]:
    """Of a sum between nodes, and of a rank's own work in it."""
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
        "sums within a node": (replace(workload, local=NO_TIME), link, software),
    }
    saved = {
        name: exposed - exposed_seconds(other, nodes, wire, cost) for name, (other, wire, cost) in without.items()
    } | {"the slowest rank": slowest}
    limit = max(saved, key=saved.__getitem__)
    if slowest + exposed < _MATTERS * seconds:
        limit = "own work"
    return Prediction(nodes, ranks, seconds, own, slowest, exposed, own / seconds, limit)
