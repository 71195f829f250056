"""Who keeps whom waiting: from what each rank reports of itself to words. Pure functions."""

import linecache
from collections.abc import Collection, Iterable, Mapping, Sequence

from ddp.watching.record import Place, Record, Records, Waiting
from ddp.world.ranks import name_ranks

_STALE = 3.0  # seconds after which a rank that should have reported is taken to be stuck outside Python


def late_ranks(waiting: Waiting, records: Records) -> list[int]:
    """Those known not to have done their part of what is waited for."""
    found = []
    for rank in waiting.ranks:
        contributed = records[rank].contributed if rank in records else None
        if contributed is not None and contributed.get(waiting.channel, 0) < waiting.number:
            found.append(rank)
    return found


def silent_ranks(waiting: Waiting, records: Records, now: float) -> list[int]:
    """Those that report nothing any more, and have not ended. They may have begun their part, as far as is known."""
    return [
        rank
        for rank in waiting.ranks
        if rank in records and not records[rank].ended and now - records[rank].beat > _STALE
    ]


def speaker(waiting: Waiting, records: Records, now: float) -> int:
    """Who tells of a wait: the lowest rank that waits for the same and is there to tell. `waiting` is one of theirs."""
    return min(
        rank
        for rank, record in records.items()
        if record.waiting is not None
        and record.waiting[:2] == waiting[:2]
        and not record.ended
        and (record.waiting == waiting or now - record.beat <= _STALE)
    )


def gone_ranks(waiting: Waiting, records: Records) -> list[int]:
    """Those that will never do it, because they have ended; empty if others will do."""
    gone = {rank for rank in late_ranks(waiting, records) if records[rank].ended}
    return sorted(gone) if _needed(waiting, records, gone) else []


def stuck_ranks(records: Records) -> list[int]:
    """Ranks that wait for one another for ever: each for one among them.

    Found by taking away, again and again, those that wait for nobody left. That the records are not of one moment does
    no harm: a rank that waits contributes nothing, so whom it has not served by then it has not served now.
    """
    waits = {rank: record.waiting for rank, record in records.items() if record.waiting and not record.ended}
    while free := {rank for rank, waiting in waits.items() if not _needed(waiting, records, waits.keys())}:
        for rank in free:
            del waits[rank]
    return sorted(waits)


def _needed(waiting: Waiting, records: Records, ranks: Collection[int]) -> bool:
    """Whether what is waited for cannot be without these ranks."""
    late = late_ranks(waiting, records)
    if waiting.anybody:
        return len(late) == len(waiting.ranks) - 1 > 0 and all(rank in ranks for rank in late)
    return any(rank in ranks for rank in late)


def describe_gone(waiting: Waiting, gone: Sequence[int], records: Records) -> str:
    """That ranks will never come, in words."""
    ended = records[gone[0]].ended
    who = f"{name_ranks(gone)} {ended if len(gone) == 1 else _plural(ended)}"
    others = [rank for rank, record in sorted(records.items()) if record.waiting and record.waiting[:2] == waiting[:2]]
    others = [rank for rank in others if not records[rank].ended]
    return (
        f"{who}, but {name_ranks(others)} wait{'s' if len(others) == 1 else ''} for "
        f"{'it' if len(gone) == 1 else 'them'} in {waiting.label} (number {waiting.number} of {waiting.channel})"
    )


def describe_lost(hosts: Mapping[str, Sequence[int]], own_host: str, seconds: float, addresses: Sequence[str]) -> str:
    """That nothing is heard of hosts, given with their ranks. addresses: of those that acknowledge nothing."""
    names = ", ".join(f"{host} ({name_ranks(ranks)})" for host, ranks in hosts.items())
    one = len(hosts) == 1
    silent = f"; {', '.join(addresses)} acknowledge{'s' if len(addresses) == 1 else ''} nothing" if addresses else ""
    return (
        f"host{'' if one else 's'} {names} {'has' if one else 'have'} not been heard of for {seconds:.0f} s on "
        f"{own_host}: {'it is' if one else 'they are'} dead, or the network between them is cut{silent}"
    )


def describe_wait(waiting: Waiting, now: float) -> str:
    """What is waited for, in words."""
    return f"{waiting.label} (number {waiting.number} of {waiting.channel}) for {now - waiting.since:.0f} s"


def describe_awaited(waiting: Waiting, records: Records, now: float) -> str:
    """Who is, in words: of those that are late the ones that do not wait for others themselves, if there are any."""
    if late := late_ranks(waiting, records):
        held_up = [rank for rank in late if records[rank].waiting and now - records[rank].beat <= _STALE]
        return name_ranks([rank for rank in late if rank not in held_up] or late)
    if silent := silent_ranks(waiting, records, now):
        return f"{name_ranks(silent)}, which {'does' if len(silent) == 1 else 'do'} not answer"
    return "bytes to arrive, or ranks that cannot be seen from here"


def describe_ranks(
    ranks: Iterable[int], records: Records, now: float, own_code: tuple[str, ...], hosts: Sequence[str] = ()
) -> str:
    """What each of these ranks does, and where; a paragraph for those that do the same on one host. own_code: of
    the package, files and folders, whose frames are left out. hosts: of all ranks; named where there are several.
    """
    several = len(set(hosts)) > 1
    paragraphs: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(ranks):
        where = f" on {hosts[rank]}" if several else ""
        paragraphs.setdefault((_describe_rank(records.get(rank), now, own_code), where), []).append(rank)
    return "\n".join(
        f"{name_ranks(found)}{where} {text if len(found) == 1 else _plural(text)}"
        for (text, where), found in paragraphs.items()
    )


def _describe_rank(record: Record | None, now: float, own_code: tuple[str, ...]) -> str:
    if record is None:
        return "is on another node, and what it does is not known here"
    if record.ended:
        return record.ended
    where = format_stack(record.stack, own_code)
    if now - record.beat > _STALE:
        silence = f"does not answer since {now - record.beat:.0f} s (stopped, or in code that holds the GIL)"
        return f"{silence}; then it was at\n{where}"
    if record.waiting is not None:
        label, number, channel = record.waiting.label, record.waiting.number, record.waiting.channel
        return f"waits in {label} (number {number} of {channel}), at\n{where}"
    return f"is elsewhere, at\n{where}"


def _plural(text: str) -> str:
    verb, _, rest = text.partition(" ")
    return f"{ {'waits': 'wait', 'is': 'are', 'has': 'have', 'does': 'do'}[verb] } {rest}"


def format_stack(stack: tuple[Place, ...], own_code: tuple[str, ...]) -> str:
    """As a traceback; the innermost frames that belong to the package are left out."""
    shown = list(stack)
    while len(shown) > 1 and shown[-1].file.startswith(own_code):
        shown.pop()
    lines = []
    for place in shown:
        lines.append(f'  File "{place.file}", line {place.line}, in {place.function}')
        text = linecache.getline(place.file, place.line).strip()
        if text:
            lines.append(f"    {text}")
    return "\n".join(lines)
