"""What the doctor reports: findings, each a line, and numbers in words."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

OK, WARN, FAIL = "ok", "warn", "FAIL"


class Finding(NamedTuple):
    """One fact. verdict: OK, WARN or FAIL; advice: what to do about the last two."""

    verdict: str
    subject: str
    text: str
    advice: str = ""


def as_text(finding: Finding) -> str:
    """The finding as a line, its advice as a second one."""
    line = f"{finding.verdict:<4}  {finding.subject:<16}  {finding.text}"
    return f"{line}\n{'':<24}-> {finding.advice}" if finding.advice else line


def spans(numbers: Iterable[int]) -> str:
    """Numbers in ascending order, neighbours joined: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def name_ranks(ranks: Sequence[int]) -> str:
    """In words: `rank 3`, `ranks 0-2, 5`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {spans(ranks)}"


def count(number: int, thing: str) -> str:
    """In words: `1 rank`, `2 ranks`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Three digits and a unit: `12.3 us`, `4.56 ms`, `1.2 s`."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
