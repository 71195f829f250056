"""From what ranks recorded to who waits for whom: the pure functions behind `ddp.timeline`.

Whatever ranks do together is a meeting (`ddp.watching.progress`): a bucket of gradients, a broadcast of buffers, a
collective of the user's. A rank that is blocked in a meeting waits for the others up to the moment when the last of
them has come, and from then on for the bytes. If that last one was itself blocked meanwhile, by others, then those are
waited for.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, TypeVar

Meeting = tuple[str, int]
"""Name of a channel, and number of the meeting in it."""

PHASES = ("forward", "backward", "optimizer")


class Span(NamedTuple):
    """A time in seconds with a name: a phase of the step."""

    name: str
    begin: float
    end: float


class Blocked(NamedTuple):
    """A time in which a rank did nothing but wait for a meeting; a meeting inside another one interrupts it."""

    meeting: Meeting
    name: str
    begin: float
    end: float


class BucketTrip(NamedTuple):
    """A bucket in one step: when it was full, seen to be summed, and handed out to its parameters."""

    number: int
    name: str
    filled: float
    summed: float
    handed_out: float


@dataclass(slots=True)
class Record:
    """What a rank (its number in the world) noted, in seconds of its own clock. Lists are in order of time."""

    rank: int
    began: float
    phases: list[Span] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    arrivals: dict[Meeting, float] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)  # ranks of each channel
    buckets: list[BucketTrip] = field(default_factory=list)
    synchronized: list[tuple[float, float]] = field(default_factory=list)  # end of a backward, and the share hidden
    barriers: list[tuple[float, float]] = field(default_factory=list)  # before and after each, at the very end


class Piece(NamedTuple):
    """Part of a blocked time: `cause` is the rank that was waited for, None from when everybody was there."""

    name: str
    begin: float
    end: float
    cause: int | None


class Step(NamedTuple):
    """A step of one rank, in seconds. own: of each phase, and "rest", without what it was blocked. waiting: by the rank
    that was waited for. transfer: blocked, but by nobody known. hidden: the share of its communication.
    """

    begin: float
    end: float
    own: dict[str, float]
    waiting: Mapping[int, float]
    transfer: float
    hidden: float


# --- clocks -----------------------------------------------------------------------------------------------------------


def clock_offsets(barriers: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """For each rank, by how many seconds its clock is ahead of the first one's, and how wrong that may be.

    barriers: for each rank, its clock before and after each of the same barriers. Nobody leaves one before all have
    entered it, which bounds the offset from both sides. Clocks that may be equal are taken to be the same one: those
    of two machines count from when these were started.
    """
    found = []
    for own in barriers:
        low = max((own[i][0] - other[1] for i, other in enumerate(barriers[0])), default=0.0)
        high = min((own[i][1] - other[0] for i, other in enumerate(barriers[0])), default=0.0)
        found.append((0.0, 0.0) if low <= 0 <= high else ((low + high) / 2, abs(high - low) / 2))
    return found


def shifted(record: Record, ahead: float) -> Record:
    """The record of a rank whose clock is ahead, on the clock of the first rank."""
    return Record(
        record.rank,
        record.began - ahead,
        [span._replace(begin=span.begin - ahead, end=span.end - ahead) for span in record.phases],
        [span._replace(begin=span.begin - ahead, end=span.end - ahead) for span in record.blocked],
        {meeting: time - ahead for meeting, time in record.arrivals.items()},
        record.members,
        [BucketTrip(trip.number, trip.name, *(time - ahead for time in trip[2:])) for trip in record.buckets],
        [(end - ahead, hidden) for end, hidden in record.synchronized],
    )


# --- who waits for whom -----------------------------------------------------------------------------------------------


def pieces(records: Sequence[Record], exactness: float = 0.0) -> list[list[Piece]]:
    """Of each rank, what it was blocked by. exactness: by how much clocks may differ.

    A meeting of which some rank is not known (it is not among the records, or came before they began) has no cause.
    """
    arrivals: dict[Meeting, dict[int, float]] = {}
    for record in records:
        for meeting, time in record.arrivals.items():
            arrivals.setdefault(meeting, {})[record.rank] = time
    return [
        [
            piece
            for blocked in record.blocked
            for piece in _divide(record, blocked, arrivals.get(blocked.meeting, {}), exactness)
        ]
        for record in records
    ]


def _divide(record: Record, blocked: Blocked, arrivals: Mapping[int, float], exactness: float) -> Iterator[Piece]:
    _, name, begin, end = blocked
    members = record.members.get(blocked.meeting[0], ())
    if members and all(rank in arrivals for rank in members):
        # those that came after the end were not needed, as other receivers of a broadcast
        late = [(arrivals[rank], rank) for rank in members if begin < arrivals[rank] <= end + exactness]
        time, cause = max(late, default=(begin, record.rank))
        if cause != record.rank:
            yield Piece(name, begin, min(time, end), cause)
            begin = min(time, end)
    if begin < end:
        yield Piece(name, begin, end, None)


_Timed = TypeVar("_Timed", Span, Piece)


def _within(spans: Sequence[_Timed], begin: float, end: float) -> Iterator[_Timed]:
    """The parts of spans (in order, disjoint) that lie between two times."""
    at = max(0, bisect_right(spans, begin, key=attrgetter("begin")) - 1)
    while at < len(spans) and spans[at].begin < end:
        if spans[at].end > begin:
            yield spans[at]._replace(begin=max(begin, spans[at].begin), end=min(end, spans[at].end))
        at += 1


def _length(spans: Iterator[Piece]) -> float:
    return sum(span.end - span.begin for span in spans)


def _blame(
    waits: Mapping[int, Sequence[Piece]], rank: int, begin: float, end: float, depth: int
) -> Iterator[tuple[int, float]]:
    """Who is to blame, for how many seconds, when `rank` is waited for: itself, but for what it waits for others."""
    own = end - begin
    for piece in _within(waits[rank], begin, end) if depth else ():
        assert piece.cause is not None
        own -= piece.end - piece.begin
        yield from _blame(waits, piece.cause, piece.begin, piece.end, depth - 1)
    yield rank, own


def step_ends(record: Record) -> list[float]:
    """When each step was over: after the optimizers that follow its synchronised backward."""
    ends = []
    for end, _ in record.synchronized:
        over = end
        for phase in record.phases[bisect_right(record.phases, end, key=attrgetter("end")) :]:
            if phase.begin > end and phase.name != "optimizer":
                break
            over = phase.end
        ends.append(over)
    return ends


def steps(records: Sequence[Record], blocked: Sequence[Sequence[Piece]]) -> list[list[Step]]:
    """Of each rank its steps; each begins where the one before has ended. blocked: of `pieces`."""
    waits = {
        record.rank: [piece for piece in own if piece.cause is not None]
        for record, own in zip(records, blocked, strict=True)
    }
    found: list[list[Step]] = []
    for record, own in zip(records, blocked, strict=True):
        found.append([])
        begin = record.began
        for end, (_, hidden) in zip(step_ends(record), record.synchronized, strict=True):
            seconds = dict.fromkeys((*PHASES, "rest"), 0.0)
            for phase in _within(record.phases, begin, end):
                inside = _length(_within(own, phase.begin, phase.end))
                seconds[phase.name] += phase.end - phase.begin - inside
            waiting: Counter[int] = Counter()
            for piece in _within(waits[record.rank], begin, end):
                assert piece.cause is not None
                for rank, share in _blame(waits, piece.cause, piece.begin, piece.end, len(records)):
                    waiting[rank] += share  # type: ignore[assignment]
            stopped = _length(_within(own, begin, end))
            seconds["rest"] = max(0.0, end - begin - stopped - sum(seconds.values()))
            found[-1].append(Step(begin, end, seconds, waiting, stopped - sum(waiting.values()), hidden))
            begin = end
    return found
