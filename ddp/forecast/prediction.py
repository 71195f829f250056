"""From what was measured to a step on so many nodes: pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddp.forecast.network import (
    Link,
    Software,
    chain_seconds,
    chain_thread_seconds,
    exchange_seconds,
    link_seconds,
    thread_seconds,
)
from ddp.transport.timing import SumTimes

NO_TIME = SumTimes(0.0, 0.0)
_MATTERS = 0.03  # share of a step from which on something limits it


@dataclass(frozen=True, slots=True)
class Workload:
    """A step of a script as it was measured, in seconds.

    own: how long a rank worked, in the mean. noise: by how much the ranks differed from that in the same step.
    buckets: after how much work of a rank each was full, its bytes and those of its header, in the order of their sums.
    local: what a sum over the ranks of one node takes. ranks: of a node. step: the mean of all that a step took.
    """

    own: float
    noise: Sequence[float]
    buckets: Sequence[tuple[float, int, int]]
    local: SumTimes
    ranks: int
    step: float


class Prediction(NamedTuple):
    """A step on so many nodes, in seconds: own work, the wait for the slowest rank, and sums that are not hidden.

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
    """How much longer a rank has to do with the sums of a step than with its own work up to the last gradient.

    Where a rank is alone on its node, a sum begins when the messages of the one before are on their way, and the thread
    does not go on with its own work while it posts messages and adds up. Otherwise it begins when that is over.
    """
    alone = nodes > 1 and workload.ranks == 1  # the transports that `ddp.transport.choose_transport` takes
    begin = busy = away = over = 0.0
    for full, nbytes, header in workload.buckets:
        begin = max(begin + busy, full + away)
        busy = seconds = workload.local.seconds + nbytes * workload.local.byte
        if alone:
            thread = thread_seconds(nbytes, nodes, software, header)
            seconds += exchange_seconds(nbytes, nodes, link, software, header)
            busy += max(thread, link_seconds(nbytes, nodes, link, header))
            away += thread
        elif nodes > 1:
            busy = seconds = seconds + chain_seconds(nbytes, nodes, workload.ranks, link, software)
            away += chain_thread_seconds(nbytes, workload.ranks, software)
        over = max(over, begin + seconds)
    return max(0.0, over - workload.buckets[-1][0])


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
