"""What the watchdog says on stderr, and when; and the end of the job, after its reason was said."""

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence

from ddp import losses
from ddp.watching.last_resort import end_this_host
from ddp.watching.record import Records
from ddp.watching.verdict import describe_ranks
from ddp.world import bootstrap
from engine.calls import listening

PATIENCE = 1.0  # seconds of waiting that are nothing to look into
SOFT = 60.0  # seconds until the first report; Horovod's number, too
# Not all of engine: where a rank computes is worth telling.
OWN_CODE = (os.path.dirname(os.path.dirname(__file__)) + os.sep, listening.__file__)


class Teller:
    """Of one rank. hosts: of all ranks. neighbours: the processes of the ranks on this host."""

    def __init__(self, rank: int, hosts: Sequence[str], neighbours: Sequence[int]) -> None:
        self._rank = rank
        self._hosts = hosts
        self._neighbours = neighbours
        self._reported: tuple[object, float] | None = None  # the wait last reported, and when to do so again
        self._hopeless: tuple[str, float] | None = None  # why nobody can go on, and since when that is known

    def report(
        self, wait: object, seconds: float, timeout: float, headline: str, ranks: Iterable[int], records: Records
    ) -> None:
        """Says it after a while, and again whenever the time has doubled."""
        if self._reported is None or self._reported[0] is not wait:
            self._reported = wait, min(SOFT, timeout / 2)
        due = self._reported[1]
        if seconds > due:
            self._reported = wait, 2 * due if 2 * due < timeout else math.inf
            self.say(headline, ranks, records)

    def give_up(self, reason: str, speaks: bool, records: Records) -> None:
        """Ends the job if it is this rank that speaks, or if the one that does has not done so for a while.

        Where the others go on without a lost rank, the first time only this rank ends: it may have been MPI's doing. So
        it does where another is lost already.
        """
        now = time.monotonic()
        if self._hopeless is None or self._hopeless[0] != reason:
            self._hopeless = reason, now
        if speaks or now - self._hopeless[1] > 2 * PATIENCE:
            watch = losses.watching()
            if watch is not None and (watch.noticed.is_set() or losses.dies_alone(reason, "hopeless")):
                try:
                    self._say_of_all(f"{reason}; rank {self._rank} ends, and the others go on without it", records)
                finally:
                    bootstrap.end_alone()
            self.end_job(reason, records)

    def hope(self) -> None:
        """Somebody can go on."""
        self._hopeless = None

    def end_job(self, reason: str, records: Records) -> None:
        """Says why, and ends all ranks."""
        try:
            self._say_of_all(f"{reason}; the job is ended", records)
        finally:  # what cannot be told ends the job all the same
            if (watch := losses.watching()) is not None:  # to the others MPI_Abort is one more loss
                watch.kill([rank for rank in range(len(self._hosts)) if rank != self._rank], reason)
            if len(set(self._hosts)) > 1:
                end_this_host(self._neighbours)
            bootstrap.abort(1)

    def _say_of_all(self, headline: str, records: Records) -> None:
        try:
            self.say(headline, range(len(self._hosts)), records)
        except Exception:
            traceback.print_exc()  # this process ends before anybody else could show it
            raise

    def say(self, headline: str, ranks: Iterable[int], records: Records) -> None:
        """The headline, and what these ranks do."""
        text = describe_ranks(ranks, records, time.monotonic(), OWN_CODE, self._hosts)
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or the program has closed it
            # One write, so that it is not mixed with what other ranks say.
            sys.stderr.write(f"ddp watchdog on {self._hosts[self._rank]}: {headline}\n{text}\n")
            sys.stderr.flush()
