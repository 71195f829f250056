"""What a sum over nodes takes on a link that is not here: the messages of the transports, counted."""

import re
from typing import NamedTuple

from ddp.transport import hierarchical, mpi

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_LINK = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit|tbit),(\d+(?:\.\d+)?)(ns|us|ms|s)", re.IGNORECASE)


PAYLOAD = 1448 / 1538
"""Share of a line's bits that are a message's: the rest of an Ethernet packet of 1,500 bytes is headers and a pause."""


class Link(NamedTuple):
    """Between a node and the network. bandwidth: bytes of messages a second, each way. latency: seconds, one way."""

    bandwidth: float
    latency: float


class Software(NamedTuple):
    """What summing by messages takes between two ranks without a network, in seconds.

    message: of a sum of next to nothing. byte: each byte more. peer: another message in the same call.
    """

    message: float
    byte: float
    peer: float


def parse_link(text: str) -> Link:
    """ "25gbit,2us", the line's rate, as a link. Raises: ValueError for anything else, a bandwidth of 0 included."""
    found = _LINK.fullmatch(text.replace(" ", ""))
    if found is None or float(found[1]) == 0:
        raise ValueError(
            f"link: expected a bandwidth and a latency like 25gbit,2us (kbit, mbit, gbit or tbit; ns, us, ms or s), "
            f"got {text!r}"
        )
    return Link(PAYLOAD * float(found[1]) * _RATES[found[2].lower()] / 8, float(found[3]) * _TIMES[found[4].lower()])


def chain_seconds(nbytes: int, nodes: int, owners: int, link: Link, software: Software) -> float:
    """Of the hierarchical transport: each of a node's `owners` sends its slice along the chain of nodes and back."""
    part = nbytes / owners
    chunk = min(hierarchical.CHUNK_BYTES, part)
    travel = chunk * owners / link.bandwidth  # the owners of a node share its link
    work = chunk * software.byte
    there_and_back = 2 * (nodes - 1) * (software.message / 2 + link.latency + max(travel, work))
    each = max(travel, work, there_and_back / hierarchical.DEPTH)
    return there_and_back + (part / chunk - 1) * each


def exchange_seconds(nbytes: int, ranks: int, link: Link, software: Software) -> float:
    """Of the mpi transport with a rank on each node: all send slices to all, add them up, and send the sums to all. A
    small array goes whole to all, in one step.
    """
    step = software.message + link.latency + (ranks - 2) * software.peer
    if nbytes <= mpi.WHOLE_BYTES:
        return step + nbytes * (ranks - 1) / link.bandwidth
    chunk = min(mpi.CHUNK_BYTES, nbytes)
    share = 2 * (ranks - 1) / ranks  # of a chunk's bytes that a rank sends, and receives
    travel = chunk * share / link.bandwidth
    work = chunk * share * software.byte  # measured with two ranks, where the share is 1
    first = 2 * step + max(travel, work)
    each = max(travel, work + 2 * (ranks - 2) * software.peer, first / mpi.DEPTH)
    return first + (nbytes / chunk - 1) * each


def chain_work(nbytes: int, owners: int, software: Software) -> float:
    """What of `chain_seconds` a rank in the midst works itself: as if it stood still for it where backward goes on."""
    part = nbytes / owners
    return part * software.byte + part / min(hierarchical.CHUNK_BYTES, part) * software.message


def exchange_work(nbytes: int, ranks: int, software: Software) -> float:
    """The same of `exchange_seconds`."""
    step = software.message + (ranks - 2) * software.peer
    if nbytes <= mpi.WHOLE_BYTES:
        return step
    share = 2 * (ranks - 1) / ranks
    return nbytes * share * software.byte + nbytes / min(mpi.CHUNK_BYTES, nbytes) * 2 * step
