"""How many ranks may be lost before the job is ended (`ddprun --max-failures N[/SECONDS]`)."""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

MAX_FAILURES = "ALLSTRIDE_MAX_FAILURES"
"""Environment variable in which `ddprun --max-failures` says how many ranks may be lost."""


class Limit(NamedTuple):
    """At most so many losses in any period of so many seconds."""

    number: int
    seconds: float

    def still_count(self, losses: Sequence[float]) -> tuple[float, ...]:
        """Those of these times, in their order, that lie in the period that ends with the last one."""
        recent = [each for each in losses if each > losses[-1] - self.seconds]
        return tuple(recent[-self.number - 1 :])

    def passed(self, losses: Sequence[float]) -> str:
        """That there were more, in words; empty where there were not."""
        if len(self.still_count(losses)) <= self.number:
            return ""
        time = "" if math.isinf(self.seconds) else f" in {self.seconds:g} s"
        ranks = "rank was" if self.number == 1 else "ranks were"
        return f"more than {self.number} {ranks} lost{time} (--max-failures)"


def limit() -> Limit | None:
    """What this job was asked for."""
    number, slash, seconds = os.environ.get(MAX_FAILURES, "").partition("/")
    return Limit(int(number), float(seconds) if slash else math.inf) if number else None
