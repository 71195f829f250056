"""The roll of a job: which ranks were seen, on which hosts, how each ended; and the verdict that follows from it."""

import signal
from collections.abc import Mapping, Sequence

from launch.peers import Peer

# How a rank is known to have ended.
FINISHED = "finished"  # by itself, well
FAILED = "failed"  # by itself, with another exit code than 0
GONE = "gone"  # without a word of its own: killed, or by os._exit

_SIGNALS = {*signal.Signals}  # numbers, too


class Rank:
    """One rank that has reported itself."""

    def __init__(self, number: int, pid: int, host: str, peer: Peer) -> None:
        self.number, self.pid, self.host, self.peer = number, pid, host, peer
        self.ended = self.why = ""
        self.there = True  # the process, as far as is known


class Roll:
    """All ranks of a job. expected: on which host each was to be, where that is known. least: with how few of them the
    job may go on (`--elastic`); 0: all are needed.
    """

    def __init__(self, nproc: int, expected: Mapping[int, str] | None = None, least: int = 0) -> None:
        self.nproc, self.expected, self.least = nproc, expected or {}, least
        self.ranks: dict[int, Rank] = {}
        self.lost: list[str] = []  # hosts that were there and no longer answer
        self.doubtful: list[str] = []  # hosts whose guard and ranks have gone, which may have been mpirun's doing
        self.code = 0  # of the first rank that failed
        self.error = ""  # of that rank, in short
        self.first: Rank | None = None  # to end otherwise than well
        self.renewed = False  # asked to end with a checkpoint, since mpirun has grown too large
        self.step = 0  # in which the job was, as far as its ranks have said

    def arrive(self, number: int, pid: int, host: str, peer: Peer) -> None:
        """Notes that a rank is there."""
        self.ranks[number] = Rank(number, pid, host, peer)

    def of(self, peer: Peer) -> Rank | None:
        """The rank at the other end of a connection."""
        return next((rank for rank in self.ranks.values() if rank.peer is peer), None)

    def end(self, rank: Rank, how: str, code: int = 0, error: str = "", why: str = "") -> None:
        """Notes the end of a rank; the first word counts. error: in digits; why: in words."""
        if not rank.ended:
            rank.ended, rank.why = how, why
            if how != FINISHED:
                self.first = self.first or rank
            if not self.code:
                self.code, self.error = code, error

    def running(self) -> list[Rank]:
        """Ranks that have not ended, as far as is known."""
        return [rank for rank in self.ranks.values() if not rank.ended]

    def lose(self, host: str, answered: bool = False) -> bool:
        """Whether a host is gone, now that its guard is: no rank there has said how it ended, none elsewhere that it
        failed. Who was lost first is not asked: mpirun ends the other hosts' ranks at once, and a busy ddprun hears of
        all at the same time.

        answered: the guard did when the first rank was lost, so that the host was there. A batch system ends guards,
        too, but after all ranks: where others are left the host has gone after all, one process before the other. Where
        none are, mpirun may have been faster in ending them, and the host is doubtful.
        """
        here = [rank for rank in self.ranks.values() if rank.host == host]
        gone = not any(rank.there for rank in here) and any(rank.ended == GONE for rank in here)
        if not gone or self.code:
            return False
        lost = not answered or bool(self.processes())
        (self.lost if lost else self.doubtful).append(host)
        return lost

    def cut_off(self, host: str) -> None:
        """Notes that a host is gone, since nobody there has answered when the job was ended: a cable is cut, and what
        closes connections on the other side is not heard of.
        """
        if any(rank.host == host and rank.ended != FINISHED for rank in self.ranks.values()):
            self.lost.append(host)

    def processes(self, host: str | None = None) -> list[int]:
        """The processes of ranks that are still there; on one host only if it is given."""
        return [rank.pid for rank in self.ranks.values() if rank.there and host in (None, rank.host)]

    def missing(self) -> list[int]:
        """Ranks that were not seen to finish."""
        return [n for n in range(self.nproc) if n not in self.ranks or self.ranks[n].ended != FINISHED]

    def has_failed(self) -> bool:
        """Whether a rank has ended with another exit code than 0, which is to end the others."""
        return not self.least and any(rank.ended == FAILED and not rank.there for rank in self.ranks.values())

    def gone(self) -> bool:
        """Whether no rank is there, as far as is known, and none will come: one that fails ends those on their way."""
        come = len(self.ranks) == self.nproc or (self.first is not None and not self.least)
        return come and not any(rank.there for rank in self.ranks.values())

    def all_ended(self) -> bool:
        """Whether all ranks have come, and have ended in one way or the other."""
        return len(self.ranks) == self.nproc and not self.running()

    def enough(self) -> bool:
        """Whether the job has come to its end, with the ranks that were left."""
        return 0 < self.least <= self.nproc - len(self.missing()) and not self.running()

    def all_by_themselves(self) -> bool:
        """Whether every rank has said how it ended."""
        return len(self.ranks) == self.nproc and all(r.ended in (FINISHED, FAILED) for r in self.ranks.values())


def cause(roll: Roll, code: int = 0) -> str:
    """What ended a job, in words. code: that of mpirun."""
    at = f" at step {roll.step}" if roll.step else ""
    if roll.lost:
        return f"{_names('host', roll.lost)} no longer answered{at}"
    if roll.first is None:
        return f"mpirun ended with code {code}"
    who = f"rank {roll.first.number} on {roll.first.host}"
    why = roll.first.why
    if roll.first.ended == FAILED:
        return f"{who} failed{at}" + (f" ({why})" if why else "")
    if not why and code:
        why = name_of_signal(code - 128) if code - 128 in _SIGNALS else f"mpirun ended with code {code}"
    return f"{who} was lost{at}" + (f" ({why})" if why else "")


def name_of_signal(number: int) -> str:
    """Its name, as "SIGKILL"; its number where it has none."""
    return signal.Signals(number).name if number in _SIGNALS else f"signal {number}"


def verdict(roll: Roll, mpirun: int | None, stopped_by: int | None) -> tuple[int, str]:
    """The exit code of a job, and a line where nobody has said who is missing, and why.

    mpirun: the exit code of mpirun, None where it had to be killed. stopped_by: the signal by which ddprun was stopped.
    """
    missing = roll.missing()
    if roll.enough():
        return 0, f"{_places(roll, missing)} lost on the way" if missing else ""
    if roll.least and roll.code:
        return roll.code, ""  # what ended it has been said
    words = ""
    if roll.lost:
        words = f"{cause(roll)}; {_places(roll, missing)} not seen to finish"
    if stopped_by is not None:
        return roll.code if roll.all_by_themselves() else 128 + stopped_by, words
    if mpirun is None:
        told = f"{_places(roll, missing)} not seen to finish" if missing else "their exit code is lost"
        return roll.code or 1, words or f"mpirun did not end when its ranks had and was killed; {told}"
    code = 128 - mpirun if mpirun < 0 else mpirun
    if code and roll.least and not words:  # ranks may be lost, so mpirun has no word for them
        words = f"mpirun has ended the job; {_places(roll, missing)} not seen to finish"
    if code == 0 and missing:
        code = roll.code or 1
        told = f"{_places(roll, missing)} not seen to finish, though mpirun returned 0"
        words = words or (f"{cause(roll)}; {told}" if roll.first and roll.first.why else told)
    if code and not words and roll.first is not None and roll.first.ended == GONE:
        words = cause(roll, code)
    return code, words


def _places(roll: Roll, missing: Sequence[int]) -> str:
    """These ranks by host: "ranks 2, 3 on b and rank 5 on c were"."""
    hosts: dict[str, list[int]] = {}
    for number in missing:
        rank = roll.ranks.get(number)
        hosts.setdefault(rank.host if rank else roll.expected.get(number, ""), []).append(number)
    groups = [f"{_names('rank', numbers)}{f' on {host}' if host else ''}" for host, numbers in hosts.items()]
    return f"{' and '.join(groups)} {'was' if len(missing) == 1 else 'were'}"


def _names(thing: str, which: Sequence[object]) -> str:
    return f"{thing}{'' if len(which) == 1 else 's'} {', '.join(map(str, which))}"
