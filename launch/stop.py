"""How a job is asked to end: its ranks are, in their own handlers, and have the grace before anybody is killed.

A signal reaches the ranks that handle it. Those that do not would die of it, and mpirun would then kill the others in
the middle of their checkpoint; they wait, and are ended when the others have. Where no rank handles it, mpirun ends
the job at once.
"""

import math
import signal
import time
from collections.abc import Callable

from launch.roll import Rank, Roll

# These ask for the end; the others that are passed on leave it to the ranks what they mean.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)

_ANSWER = 2.0  # seconds in which the guards of other hosts say which ranks handle a signal
# KeyboardInterrupt has ended one rank. Another that is waiting inside of MPI cannot hear of its own: nobody will come.
_INTERRUPTED = 2.0


class Stop:
    """The state of asking.

    deliver(number): sends a signal to the ranks that handle it; returns the processes that do and the number of guards
    that are still to tell of theirs. end(kill): has mpirun end the job, or kills it. say: prints a line for the user.
    """

    def __init__(
        self,
        roll: Roll,
        grace: float,
        deliver: Callable[[int], tuple[list[int], int]],
        end: Callable[[bool], None],
        say: Callable[[str], None],
    ) -> None:
        self._roll, self._grace, self._deliver, self._end, self._say = roll, grace, deliver, end, say
        self.by: int | None = None  # the signal
        self.at_once = False
        self.deadline = math.inf
        self._handling: list[Rank] = []
        self._held: list[Rank] = []  # have failed, and would take the others with them
        self._asked: int | None = None
        self._answers = 0
        self._answer_by = math.inf
        self._shown = False

    def signal(self, number: int) -> None:
        """Deals with a signal that has come to ddprun."""
        if self.by is not None and number in ENDING:
            self.at_once = True
            return
        if self.by is not None:
            self._deliver(number)
            return
        self._asked = number
        pids, self._answers = self._deliver(number)
        self._answer_by = time.monotonic() + _ANSWER
        if number in ENDING:
            self.by, self.deadline = number, time.monotonic() + self._grace
        self._handling = []
        self.answer("", pids)
        self._settle()

    def answer(self, host: str, pids: list[int]) -> None:
        """Takes note of ranks that handle the signal; `host` is empty for ddprun's own, and has answered otherwise."""
        self._handling += [
            r for r in self._roll.ranks.values() if r.pid in pids and host in ("", r.host) and not r.ended
        ]
        if host:
            self._answers -= 1
            self._settle()

    def look(self) -> None:
        """To be called now and then: ends the job when the grace is over."""
        if self._asked is not None and time.monotonic() >= self._answer_by:
            self._answers = 0
            self._settle()
        if time.monotonic() >= self.deadline:
            self.deadline = math.inf
            self._end(True)

    def failed(self, rank: Rank) -> None:
        """A rank would end the job: it may, unless others are busy ending in their own way."""
        self._held.append(rank)
        self.ended()

    def interrupted(self, rank: Rank) -> None:
        """KeyboardInterrupt went through the script of a rank: the first shows where, the others end without a word."""
        if self.by is not None:
            self.deadline = min(self.deadline, time.monotonic() + _INTERRUPTED)
        if self.by is None or not self._shown:
            self._shown = True
            rank.peer.say("show")
        else:
            self._handling = [other for other in self._handling if other is not rank]
            self.ended()

    def ended(self) -> None:
        """Some rank has ended, or wants to."""
        self._handling = [rank for rank in self._handling if not rank.ended]
        if self.by is None:
            for rank in self._held:
                rank.peer.say("go")
            self._held = []
        elif self._asked is None and not self._handling and (self._held or self._roll.running()):
            self._end(True)

    def _settle(self) -> None:
        """Acts when every host has said which of its ranks handle the signal."""
        if self._asked is None or self._answers > 0:
            return
        number, self._asked = self._asked, None
        if not self._handling:
            self.by = self.by or number
            self._end(False)
        elif number in ENDING:
            numbers = ", ".join(map(str, sorted(rank.number for rank in self._handling)))
            self._say(
                f"{signal.Signals(number).name} was passed on to {'rank' if len(self._handling) == 1 else 'ranks'} "
                f"{numbers}, to end in {self._grace:g} s; the same again ends the job at once"
            )
            self.ended()
