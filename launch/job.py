"""Runs one mpirun to its end: hears its ranks, passes signals on, gives grace, leaves no process and no file behind."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from launch import folders, guard, place
from launch.events import Events, is_open, signals
from launch.feed import Feed
from launch.mpirun import Mpirun
from launch.peers import Door, Peer
from launch.report import ALIVE, STDIN, TOKEN, WHERE
from launch.restart import RENEWAL, Ended
from launch.roll import FAILED, FINISHED, GONE, Roll, name_of_signal, verdict
from launch.stop import PASSED_ON, Stop

# Environment variables, beside those of the training, without which ranks of other hosts find neither job nor ddprun.
VARIABLES = (place.JOB_VARIABLE, WHERE, TOKEN)

_TICK = 0.1  # seconds between looks at mpirun's children: 50 us each
_LOOK = 0.02  # seconds between looks at its ports, until the first rank is there: 100 us each
_CLEAN_UP = 5.0  # seconds that mpirun takes at most to end itself after the last of them
_ASKED = 3.0  # the same when asked to: with `_FAILED` and what comes before and after it the job ends within 10 s
_ALL_WELL = 30.0  # the same on however busy a machine, where every rank has finished: there is a 0 to be lost
_FAILED = 3.0  # seconds in which mpirun ends the others when a rank has failed: Open MPI takes one
_LOST = 10.0  # seconds in which mpirun ends a job by itself that has lost a host


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    roll: Roll,
    one_host: bool,
    grace: float,
    ended_by: signal.Signals,
    quiet: bool = False,
    renews: bool = False,
) -> Ended:
    """Runs `argv`, an mpirun command, and returns how the job ended; its exit code: see `launch.roll.verdict`.

    one_host: all ranks are on this host. ended_by: what mpirun takes for the wish to end the job. quiet: ranks may be
    lost, of which others say what there is to say. renews: where mpirun grows by the processes that come to the job, it
    is asked to end with a checkpoint, to be started again (docs/howto/elastic.md). Raises LaunchError if there is no
    room for the job's files.
    """
    if not is_open(0):  # or one of our own descriptors would be taken for standard input
        os.open(os.devnull, os.O_RDONLY)
    name = os.urandom(8).hex()
    with folders.made(environ, name) as (places, lock), contextlib.ExitStack() as stack:
        job = _Job(name, places, lock, roll, one_host, grace, ended_by, renews)
        # What this process was started to ignore, as by nohup, is left ignored.
        passed_on = {n for n in (*PASSED_ON, signal.SIGTSTP, signal.SIGCONT) if signal.getsignal(n) != signal.SIG_IGN}
        stack.enter_context(signals(job.events, passed_on | {signal.SIGCHLD}, job.signal))
        job.start(argv, environ, quiet)
        code, words = job.wait()
        return Ended(code, job.stopped(), roll, words)


class _Job:
    """One job while it runs."""

    def __init__(
        self,
        name: str,
        places: Sequence[str],
        lock: int,
        roll: Roll,
        one_host: bool,
        grace: float,
        ended_by: signal.Signals,
        renews: bool,
    ) -> None:
        self.events = Events()
        self._name, self._folders, self._roll, self._one_host = name, places, roll, one_host
        self._ended_by, self._renews = ended_by, renews
        self._mark = f"{place.JOB_VARIABLE}={name}"
        self._kept = [lock]  # open for as long as this process or the guard of this host lives
        self._stop = Stop(roll, grace, self._deliver, self._end, say)
        self._reserve: dict[Peer, int] = {}  # processes that wait until a rank is lost
        self._guards: dict[str, Peer] = {}
        self._seen_to: set[str] = set()  # hosts whose guard has ended what was left there
        self._answered: set[str] = set()  # hosts whose guard has spoken since the first rank was lost
        self._guards_left = 3  # for this host; more would not stay either
        self._well_at = time.monotonic()  # when no rank had failed yet
        self._lost_at: float | None = None
        self._ended_at: float | None = None  # when mpirun was asked to end
        self._last_seen = time.monotonic()  # when there was a rank, or none had come yet
        self._asked_at = 0.0  # when guards were asked for ranks that say nothing any more
        self._feed = Feed(self.events)
        self._door = Door(self.events, places[0] if one_host else None, self._heard, self._lost)
        if one_host:
            pipe = os.path.join(places[0], STDIN)
            os.mkfifo(pipe, 0o600)
            # Open for both, so that rank 0 may open its end when it comes to it.
            self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            os.mkfifo(os.path.join(places[0], ALIVE), 0o600)
            self._kept.append(os.open(os.path.join(places[0], ALIVE), os.O_RDWR))

    def start(self, argv: Sequence[str], environ: Mapping[str, str], quiet: bool) -> None:
        """Starts the guard of this host, then mpirun. quiet: see `run`."""
        self._start_guard()
        given = {**environ, place.JOB_VARIABLE: self._name, **self._door.variables}
        self._mpirun = Mpirun(argv, given, self._folders[0], self._ended_by, self._roll.nproc, quiet)

    def _start_guard(self) -> None:
        self._line, theirs = socket.socketpair()
        place.start_guard(theirs.fileno(), self._name, 0, self._folders, self._kept)
        theirs.close()
        self.events.add(self._line.fileno(), self._guard_gone)

    def _guard_gone(self) -> None:
        """The guard of this host was killed: another takes its place."""
        self.events.remove(self._line.fileno())
        self._line.close()
        if self._guards_left:
            self._guards_left -= 1
            self._start_guard()

    def wait(self) -> tuple[int, str]:
        """Waits for mpirun, then ends what is left of the job everywhere; returns the verdict."""
        hangs = self._wait_for_mpirun()
        if hangs:
            self._mpirun.kill()
        self._end_leftovers(hangs)
        self._roll.step = max(self._roll.step, guard.noted_step(self._folders))
        code = self._mpirun.wait()
        self.events.wait(0.0)  # last words of ranks that had time for some
        for host in {*self._guards} - self._answered:
            self._roll.cut_off(host)
        for peer in self._guards.values():
            peer.line.close()
        self._door.close()
        self.events.remove(self._line.fileno())
        Peer(self._line).say("leave")
        self._line.close()
        for rank in self._roll.running():
            self._roll.end(rank, GONE)
        if (first := self._roll.first) is not None and first.pid in self._mpirun.killed:
            first.why = first.why or name_of_signal(self._mpirun.killed[first.pid])
        return verdict(self._roll, None if hangs and not self._stop.at_once else code, self._stop.by)

    def stopped(self) -> bool:
        """Whether somebody asked for the end."""
        return self._stop.by is not None

    def signal(self, number: int) -> None:
        """Deals with a signal that came to this process."""
        if number == signal.SIGTSTP:  # Ctrl-Z: ranks are in no process group of the terminal
            self._send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT:
            self._send(signal.SIGCONT)
        elif number != signal.SIGCHLD:
            if number == RENEWAL:  # a batch system's: the job is to end
                self._renews = self._roll.renewed = False
            self._stop.signal(number)

    def _wait_for_mpirun(self) -> bool:
        """Returns when mpirun has ended; true if it has not and is to be killed, with what there is of the job."""
        had_children = False
        while self._mpirun.runs():
            if self._one_host and not self._roll.ranks:  # mpirun opens its ports before it starts ranks
                self.events.wait(_LOOK)
                self._mpirun.keep_ports_here()
            else:
                self.events.wait(_TICK)
            self._feed.look()
            self._stop.look()
            now = time.monotonic()
            if self._stop.at_once or (self._ended_at is not None and now > self._ended_at + _ASKED):
                return True
            if self._stop.by is not None or not self._roll.has_failed():
                self._well_at = now
            if now > self._well_at + _FAILED or (self._lost_at is not None and now > self._lost_at + _LOST):
                self._end(kill=True)
            # Open MPI 5.0.11 on two hosts locked itself up in its own clean-up in 3 of 25 jobs that a rank aborted.
            # Hydra's waits for the programs by which it reaches hosts, and they may wait for anything.
            children = self._mpirun.has_children()
            had_children = had_children or children
            if not had_children or (children and self._has_ranks(now)):
                self._last_seen = now
            elif now > self._last_seen + (_CLEAN_UP if self._roll.missing() else _ALL_WELL):
                return True
        return False

    def _has_ranks(self, now: float) -> bool:
        """Whether a rank is there, or may still come. Guards of other hosts answer later, see `_heard`."""
        if not self._roll.gone():
            return True
        # A rank has closed its connection that has become another program, by exec, too.
        if self._one_host:
            return any(guard.birth(rank.pid) for rank in self._roll.ranks.values())
        if now > self._asked_at + 1.0:
            self._asked_at = now
            self._ask_who_is_there()
        return False

    def _ask_who_is_there(self) -> None:
        for host, peer in self._guards.items():
            peer.say("there", *(rank.pid for rank in self._roll.ranks.values() if rank.host == host))

    def _end(self, kill: bool) -> None:
        """Has mpirun end the job, once.

        kill: ranks that have been asked already are not asked again, as MPICH and Intel MPI do.
        """
        if self._ended_at is None:
            self._ended_at = time.monotonic()
            self._mpirun.ask_to_end()
            if kill:
                self._send(signal.SIGKILL)

    def _end_leftovers(self, at_once: bool) -> None:
        """Ends what is still there: ranks of a killed mpirun, children that outlived a rank."""
        at_once = at_once or self._ended_at is not None
        guards = list(self._guards.values())
        for peer in guards:
            peer.say("end", 0 if at_once else guard.ASK)

        def hurry() -> bool:
            self.events.wait(0.02)
            return self._stop.at_once

        guard.end(self._mark, set, 0.0 if at_once else guard.ASK, hurry)
        told = self._stop.at_once
        deadline = time.monotonic() + 2 * guard.ASK
        while self._guards and time.monotonic() < deadline:
            self.events.wait(_TICK)
            if self._stop.at_once and not told:
                told = True
                for peer in guards:
                    peer.say("end", 0)

    def _heard(self, peer: Peer, words: list[str]) -> None:
        """One line of a rank or of a guard: see report.py and guard.py."""
        match words:
            case ["reserve", pid]:
                self._reserve[peer] = int(pid)
                self._dismiss()
            case ["rank", number, pid, host]:
                replaces = self._reserve.pop(peer, None) is not None
                if self._one_host and not self._roll.ranks:
                    self._mpirun.keep_ports_here()
                self._roll.arrive(int(number), int(pid), host, peer)
                if self._renews and self._mpirun.has_grown():
                    self._renew()
                if number == "0" and self._one_host and not replaces:  # which has no standard input
                    self._feed.start(self._pipe, lambda: os.close(self._pipe))
            case ["stdin"]:
                line = self._door.give_away(peer)
                self._feed.start(line.fileno(), line.close)
            case ["guard", host]:
                self._guards[host] = peer
            case ["caught", *pids]:
                self._stop.answer(self._host_of(peer), [int(pid) for pid in pids])
            case ["orphans"]:
                say(f"error: mpirun's agent on host {self._host_of(peer)} is gone, and its ranks are not")
                self._end(kill=True)
            case ["kill", host, pid] if host in self._guards:
                self._guards[host].say("send", signal.SIGKILL.value, pid)
            case ["stopped", host, *rest] if host in self._guards:
                self._guards[host].say("stopped", *rest)
            case ["ended", step]:
                self._seen_to.add(self._host_of(peer))
                self._roll.step = max(self._roll.step, int(step))
            case ["there", number]:
                self._answered.add(self._host_of(peer))
                if number != "0":
                    self._last_seen = time.monotonic()
            case _ if rank := self._roll.of(peer):
                if words == ["interrupted"]:
                    self._stop.interrupted(rank)
                elif words == ["finished"]:
                    self._roll.end(rank, FINISHED)
                    self._stop.ended()
                    self._dismiss()
                elif words[0] == "leaves":
                    self._roll.end(rank, GONE, why=f"os._exit({words[1]})")
                elif words[0] == "ends":
                    error = "" if words[2:3] == ["-"] else "".join(words[2:3])
                    self._roll.end(rank, FAILED, int(words[1]), error, " ".join(words[3:]))
                    self._stop.failed(rank)

    def _renew(self) -> None:
        """Has the ranks end with a checkpoint (`ddp.checkpoint.Manager`), once; where none handles that, they go on."""
        handled, _ = self._deliver(RENEWAL)
        if handled:
            self._renews, self._roll.renewed = False, True
            say(
                "mpirun has grown too large by what it keeps of processes that have come; after a checkpoint the job "
                "is started again"
            )

    def _dismiss(self) -> None:
        """Ends processes that wait in reserve, when no rank is there any more that could need one."""
        if self._roll.all_ended():
            guard.send(signal.SIGKILL, [*self._reserve.values()])

    def _host_of(self, peer: Peer) -> str:
        """The host of a guard."""
        return next(host for host, one in self._guards.items() if one is peer)

    def _lost(self, peer: Peer) -> None:
        """The connection of a rank or of a guard has ended."""
        self._reserve.pop(peer, None)
        if rank := self._roll.of(peer):
            self._roll.end(rank, GONE)
            rank.there = False
            self._stop.ended()
            self._dismiss()
            if rank is self._roll.first:  # alone, or with its host: the guard there tells by answering
                self._ask_who_is_there()
        hosts = [host for host, one in self._guards.items() if one is peer]
        for host in hosts:
            del self._guards[host]
        for host in hosts or ([rank.host] if rank else []):
            # A guard outlives the ranks of its host, whatever ends them.
            seen_to = self._one_host or host in {*self._guards, *self._seen_to}
            if not seen_to and self._roll.lose(host, host in self._answered) and self._mpirun.runs():
                self._lost_at = self._lost_at or time.monotonic()

    def _deliver(self, number: int) -> tuple[list[int], int]:
        """Sends a signal to the ranks that handle it: see `launch.stop.Stop`."""
        if self._one_host:
            return guard.deliver(number, self._roll.processes()), 0
        for host, peer in self._guards.items():
            peer.say("signal", number, *self._roll.processes(host))
        return [], len(self._guards)

    def _send(self, number: int) -> None:
        """Sends a signal to all ranks, however they take it."""
        if self._one_host:
            guard.send(number, self._roll.processes())
        for host, peer in self._guards.items():
            peer.say("send", number, *self._roll.processes(host))


def say(words: str) -> None:
    """Prints a line for the user."""
    with contextlib.suppress(OSError):  # the terminal was closed: there is nobody to tell
        print(f"ddprun: {words}", file=sys.stderr, flush=True)
