"""What a sum over nodes takes on a link that is not here: the messages of the transports, counted."""

import math
import re
from typing import NamedTuple

from ddp.transport import chunks as cutting
from ddp.transport import hierarchical
from ddp.transport.base import CACHE_LINE, round_up
from ddp.transport.chunks import count_groups

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_LINK = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit|tbit),(\d+(?:\.\d+)?)(ns|us|ms|s)", re.IGNORECASE)


PAYLOAD = 1448 / 1538
"""Share of a line's bits that are a message's: the rest of an Ethernet packet of 1,500 bytes is headers and a pause."""


SHARED = 0.92
"""Share of a link that messages fill where more than two ranks send to one another: what one of them waits for comes
last over one link while others carry nothing. Open MPI over TCP, three and four hosts behind switches of two kinds,
100 Mbit/s and 1 Gbit/s: 1.04 to 1.2 times as long as bytes over bandwidth, in the middle 1.1; two hosts 0.98 to 1.06.
"""


class Link(NamedTuple):
    """Between a node and the network. bandwidth: bytes of messages a second, each way. latency: seconds, one way."""

    bandwidth: float
    latency: float

    def among(self, ranks: int) -> "Link":
        """What it is to collectives of so many ranks."""
        return self if ranks <= 2 else self._replace(bandwidth=SHARED * self.bandwidth)


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
    """Of the hierarchical transport: each of a node's `owners` sends its slice along the chain of nodes and back.

    From three nodes on, those in the midst send and receive every chunk twice: on its way there, and back.
    """
    part = nbytes / owners
    chunk = min(hierarchical.CHUNK_BYTES, part)
    travel = chunk * owners / link.bandwidth  # the owners of a node share its link
    work = chunk * software.byte
    hop = software.message / 2 + link.latency + max(travel, work)
    # At most so many chunks wait for one message each, whose receiver may have to ask for it.
    each = max(travel if nodes == 2 else 2 * travel, work, (hop + link.latency) / hierarchical.DEPTH)
    return 2 * (nodes - 1) * hop + (part / chunk - 1) * each


def chain_thread_seconds(nbytes: int, owners: int, software: Software) -> float:
    """How much of `chain_seconds` the thread of a rank is at work, and its program is not."""
    part = nbytes / owners
    return part * software.byte + part / min(hierarchical.CHUNK_BYTES, part) * software.message


def exchange_seconds(nbytes: int, ranks: int, link: Link, software: Software, header: int = 0) -> float:
    """Of the mpi transport with a rank on each node: all send slices to all, add them up, and send the sums to all. A
    small array goes whole to all, in one step. Many ranks are groups, which do so within, and pass sums on.

    header: bytes that go ahead of it, whole, from every rank to every rank of its group. `ddp.forecast.virtual_time`
    runs what is written down here, and its tests compare the two.
    """
    groups = count_groups(ranks)
    if groups > 1:
        return _grouped_seconds(nbytes, ranks, link, software, header, groups)
    link = link.among(ranks)
    others, peers, delay = ranks - 1, (ranks - 2) * software.peer, software.message + link.latency
    ahead = others * round_up(header, CACHE_LINE)
    if nbytes <= cutting.WHOLE_BYTES:
        return peers + (ahead + others * nbytes) * max(1 / link.bandwidth, software.byte) + delay
    chunks, every = _cut(nbytes, ranks, ranks)
    # What is at work without a break: the link, or the thread that posts and adds up.
    half = _half(min(cutting.chunk_bytes(ranks), nbytes), ranks, ranks)
    travel, work = half / link.bandwidth, half * software.byte + peers
    in_front = min(chunks, cutting.DEPTH) - 1  # scatters between a chunk's own and its gather
    first = peers if header else 0.0  # what posting the header takes
    on_link = first + max(ahead / link.bandwidth, peers + ahead * software.byte) + every / link.bandwidth
    on_link += max(0.0, delay + peers - in_front * travel)
    in_thread = thread_seconds(nbytes, ranks, software, header) + max(0.0, delay - in_front * work)
    # At most so many chunks are in their first step, the header as one: over a long way all wait for the first of them.
    breaks, each = math.ceil((chunks + bool(header)) / cutting.DEPTH) - 1, max(travel, work)
    pauses = breaks * max(0.0, delay - 2 * (cutting.DEPTH - 1) * each)
    if breaks:  # the header moves no chunk on
        pauses += max(0.0, min(delay - 2 * each, 2 * each))
    return max(on_link, in_thread) + pauses + delay


def _grouped_seconds(nbytes: int, ranks: int, link: Link, software: Software, header: int, groups: int) -> float:
    """Of a bucket: its header goes along the groups and back, and after it the chunks, whose weights are known then."""
    size, owners = math.ceil(ranks / groups), ranks // groups
    peers, delay, hops = (size - 2) * software.peer, software.message + link.latency, 2 * (groups - 1)
    chunk = min(cutting.chunk_bytes(owners), nbytes)
    chunks, half, part = math.ceil(nbytes / chunk), _half(chunk, size, owners), _slice(chunk, owners)
    tally, within = header + 8 * cutting.TALLY, link.among(size)

    def passing(nbytes: float, way: Link) -> float:
        return nbytes * max(1 / way.bandwidth, software.byte)

    ahead = (size - 1) * round_up(header, CACHE_LINE)
    early = min(chunks, cutting.DEPTH)  # scatters posted behind the header
    posted = (1 + early) * peers + (ahead + early * half) * software.byte
    known = max(posted, peers + passing(ahead, within) + delay)
    known += hops * (delay + passing(tally, link))  # to the first of a group
    known += peers + delay + passing(tally, within)
    scattered = 2 * peers + ahead / within.bandwidth + passing(half, within) + delay
    first = max(known, scattered) + hops * (delay + passing(part, link)) + peers + passing(half, within) + delay
    along = min(groups - 1, 2) * part
    sent = 2 * half + along
    work = (chunks - 1) * (2 * peers + sent * software.byte) - (early - 1) * (peers + half * software.byte)
    return first + max((chunks - 1) * (2 * half / within.bandwidth + along / link.bandwidth), work)


def thread_seconds(nbytes: int, ranks: int, software: Software, header: int = 0) -> float:
    """How much of `exchange_seconds` a rank's thread is at work, and its program is not."""
    peers, sent = _posted(nbytes, ranks, header)
    return peers * software.peer + sent * software.byte


def link_seconds(nbytes: int, ranks: int, link: Link, header: int = 0) -> float:
    """How much of `exchange_seconds` bytes go through a rank's link; those along groups as if they shared it, too."""
    return _posted(nbytes, ranks, header)[1] / link.among(math.ceil(ranks / count_groups(ranks))).bandwidth


def _posted(nbytes: int, ranks: int, header: int) -> tuple[int, int]:
    """How many further messages a rank posts in the same calls, and the bytes that it sends, and receives."""
    groups = count_groups(ranks)
    size, owners = math.ceil(ranks / groups), ranks // groups
    ahead = (size - 1) * round_up(header, CACHE_LINE)
    if groups == 1 and nbytes <= cutting.WHOLE_BYTES:
        return size - 2, ahead + (size - 1) * nbytes
    chunks, every = _cut(nbytes, size, owners)
    calls = 2 * chunks + bool(header)
    if groups > 1:
        calls += bool(header)
        every += min(groups - 1, 2) * (math.ceil(nbytes / owners) + header + 8 * cutting.TALLY)
    return calls * (size - 2), ahead + every


def _cut(nbytes: int, ranks: int, owners: int) -> tuple[int, int]:
    """How many chunks, and the bytes that a rank sends, and receives, in all their steps within its group."""
    chunk = cutting.chunk_bytes(owners)
    chunks = math.ceil(nbytes / chunk)
    rest = nbytes - (chunks - 1) * chunk
    return chunks, 2 * ((chunks - 1) * _half(chunk, ranks, owners) + _half(rest, ranks, owners))


def _half(nbytes: int, ranks: int, owners: int) -> int:
    """Bytes that a rank sends, and receives, in each of a chunk's two steps: a slice of each owner from each rank."""
    return (ranks - 1) * _slice(nbytes, owners)


def _slice(nbytes: int, owners: int) -> int:
    return round_up(math.ceil(nbytes / owners), CACHE_LINE)
