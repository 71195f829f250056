"""What `ddp.timeline` tells of the steps of all ranks: a table, which rank holds the others up, trace events."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from ddp.timeline.step_times import PHASES, Piece, Record, Step

_NOTICEABLE = 0.05  # share of a step that the others wait for a rank, from which on it is worth a name
SPENT = ("transfer", *PHASES, "rest")


class Verdict(NamedTuple):
    """The rank that holds the others up, if one does, and the sentence about it."""

    rank: int | None
    text: str


def verdict(ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> Verdict:
    """Which rank the others wait for. taken: the steps of each, as many for all.

    It is named if the others wait for it a twentieth of a step or more on average, more than for any other, and chance
    does not explain that: it was the last one in more steps than a fair draw would make it (the mean and two standard
    deviations), or what they wait more for it than for any other, step by step, is two standard errors away from 0.
    """
    count, size = len(taken[0]), len(ranks)
    if size == 1:
        return Verdict(None, "One rank: there is nobody to wait for.")
    if not count:
        return Verdict(None, "Nothing can be said: there was no step on every rank.")
    lost = waited_for(ranks, taken)
    last = Counter(max(range(size), key=lambda r: lost[r][i]) for i in range(count) if any(own[i] for own in lost))
    worst = max(range(size), key=lambda r: sum(lost[r]))
    length = fmean(step.end - step.begin for own in taken for step in own)
    waited = fmean(lost[worst])
    figures = (
        f"{_ms(waited)} ms of a step's {_ms(length)} on average; it was the last one in {last[worst]} of {count} steps"
    )
    by_chance = count / size + 2 * sqrt(count / size * (1 - 1 / size))
    if waited < _NOTICEABLE * length:
        return Verdict(None, f"No rank stands out: the others wait most for rank {ranks[worst]}, {figures}.")
    other = max((r for r in range(size) if r != worst), key=lambda r: sum(lost[r]))
    more = [own - others for own, others in zip(lost[worst], lost[other], strict=True)]
    if last[worst] < by_chance and sum(more) < 2 * sqrt(sum(each * each for each in more)):
        why = (
            f"{count} steps are too few to tell that from chance: record more."
            if by_chance > count
            else "It is not always the same one: batches that differ in work, or a busy machine, would explain it."
        )
        return Verdict(None, f"The others wait most for rank {ranks[worst]}: {figures}. {why}")
    slow, usual = (
        {name: median(spent(step, name) for r, own in enumerate(taken) if (r == worst) == whose for step in own)
         for name in SPENT}
        for whose in (True, False)
    )  # fmt: skip
    name = max(SPENT, key=lambda name: slow[name] - usual[name])
    text = f"The others wait for rank {ranks[worst]}: {figures}."
    if slow[name] > usual[name]:
        where = "outside of forward, backward and optimizer" if name == "rest" else f"in {name}"
        text += f" It spends {_ms(slow[name])} ms {where}, the others {_ms(usual[name])}."
    return Verdict(ranks[worst], text)


def waited_for(ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> list[list[float]]:
    """For each rank, the seconds of each step that the others wait for it, on average over them."""
    return [
        [
            fmean(own[step].waiting.get(rank, 0.0) for other, own in zip(ranks, taken, strict=True) if other != rank)
            for step in range(len(taken[0]))
        ]
        if len(ranks) > 1
        else []
        for rank in ranks
    ]


def spent(step: Step, name: str) -> float:
    """The seconds of a step of what SPENT names, and of "waiting"."""
    if name == "waiting":
        return sum(step.waiting.values())
    return step.transfer if name == "transfer" else step.own[name]


def table(ranks: Sequence[int], taken: Sequence[Sequence[Step]]) -> str:
    """Medians over the steps, a line for each rank, in milliseconds."""
    columns = ("step", "waiting", *SPENT, "hidden")
    lines = ["rank" + "".join(f"{name:>11}" for name in columns)]
    for rank, own in zip(ranks, taken, strict=True):
        if not own:
            continue
        values = [
            median(step.end - step.begin for step in own),
            *(median(spent(step, name) for step in own) for name in ("waiting", *SPENT)),
        ]
        lines.append(
            f"{rank:>4}" + "".join(f"{_ms(value):>11}" for value in values) + f"{median(s.hidden for s in own):>11.0%}"
        )
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 0.9995 else f"{1e3 * seconds:.0f}"


def chrome_events(
    records: Sequence[Record], blocked: Sequence[Sequence[Piece]], taken: Sequence[Sequence[Step]]
) -> list[dict[str, Any]]:
    """Trace events: a process for each rank, a row for its steps, one for each bucket. Times in µs since the first."""
    zero = min(record.began for record in records)
    found: list[dict[str, Any]] = []

    def add(rank: int, row: int, kind: str, name: str, begin: float, end: float, **args: object) -> None:
        place = {"name": name, "cat": kind, "ph": "X", "pid": rank, "tid": row, "args": args}
        found.append(place | {"ts": 1e6 * (begin - zero), "dur": 1e6 * (end - begin)})

    def call(rank: int, row: int, what: str, name: str) -> None:
        found.append({"name": what, "ph": "M", "pid": rank, "tid": row, "args": {"name": name}})

    for record, pauses, own in zip(records, blocked, taken, strict=True):
        rank = record.rank
        call(rank, 0, "process_name", f"rank {rank}")
        call(rank, 0, "thread_name", "steps")
        for number in sorted({trip.number for trip in record.buckets}):
            call(rank, number, "thread_name", f"bucket {number}")
        for number, step in enumerate(own, 1):
            waited = {f"waited for rank {cause}, ms": 1e3 * seconds for cause, seconds in step.waiting.items()}
            add(rank, 0, "step", f"step {number}", step.begin, step.end, hidden=step.hidden, **waited)
        for phase in record.phases:
            add(rank, 0, "phase", phase.name, phase.begin, phase.end)
        for pause in pauses:
            name = "transfer" if pause.cause is None else f"waits for rank {pause.cause}"
            add(rank, 0, "blocked", name, pause.begin, pause.end, meeting=pause.name)
        for trip in record.buckets:
            add(rank, trip.number, "bucket", trip.name, trip.filled, trip.handed_out)
            add(rank, trip.number, "stage", "sum", trip.filled, trip.summed)
            add(rank, trip.number, "stage", "hand out", trip.summed, trip.handed_out)
    return found
