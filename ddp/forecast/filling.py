"""The buckets that gradients would fill on so many nodes."""

from collections.abc import Sequence

from ddp.forecast.network import Link, Software, chain_seconds, exchange_seconds
from ddp.gradients.plan import choose_limits
from ddp.transport import headers
from ddp.transport.timing import LARGEST, SMALLEST, SumTimes

Gradients = Sequence[tuple[float, int]]
"""After how many seconds of a rank's own work each was there, and its bytes, in that order."""


def fill(gradients: Gradients, limits: Sequence[int]) -> list[tuple[float, int, int]]:
    """When each bucket is full, its bytes and those of its header, as `ddp.gradients.plan` fills them."""
    found: list[tuple[float, int, int]] = []
    members: list[int] = []
    for place, (time, nbytes) in enumerate(gradients, 1):
        members.append(nbytes)
        if sum(members) >= limits[min(len(found), len(limits) - 1)] or place == len(gradients):
            found.append((time, sum(members), 8 * headers.length(len(members))))
            members = []
    return found


def limits_between(nodes: int, ranks: int, link: Link, software: Software, nbytes: int) -> list[int]:
    """Those that are chosen for gradients of so many bytes when a model is wrapped on nodes with so many ranks each."""
    if nodes == 1:
        return choose_limits(nbytes, None)
    if ranks == 1:
        few, many = (exchange_seconds(size, nodes, link, software) for size in (SMALLEST, LARGEST))
    else:
        few, many = (chain_seconds(size, nodes, ranks, link, software) for size in (SMALLEST, LARGEST))
    return choose_limits(nbytes, SumTimes(few, (many - few) / (LARGEST - SMALLEST)))
