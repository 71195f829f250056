"""A process in reserve, which takes the place of a rank that is lost (`ddprun --elastic MIN:N`).

ddprun starts some with the ranks, in one world of MPI: that can lose any of its processes and go on. They sleep, and
take part in what follows a loss. The last of them starts new ones (`ddp.losses.nursery`) where no other waits. The
one that is promoted then runs the script from its top, as a rank that talks to nobody: what the others have done
together it does alone, until it comes to its first step, or to where it would read a checkpoint. Then it is ready.
Rank 0 looks for that at the beginning of each step, and calls all to a meeting, in which it joins.

Until then a thread answers for it in meetings, whatever its script does meanwhile.
"""

import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddp.losses import calls, deadlock, nursery, world
from ddp.losses.meeting import Meeting, meet
from ddp.losses.options import is_spawned
from ddp.losses.roles import ENOUGH, READY, STARTING, WAITING, Standing

if TYPE_CHECKING:
    from mpi4py import MPI


class _Seat:
    """What a process in reserve waits for, and what has come of it."""

    def __init__(self, joined: Callable[[], None]) -> None:
        self.standing = Standing(WAITING, world.own_number())
        self.rank = -1  # that it is going to be, as far as is known
        self.meeting: Meeting | None = None  # in which it has joined
        self.promoted, self.joined = threading.Event(), threading.Event()
        self.wanted = threading.Event()  # for `promoted`, or a new process
        watching = world.watching()
        assert watching is not None
        self._comes = is_spawned() and watching.problem is None  # into a meeting that is under way
        self._tell = joined
        threading.Thread(target=self._run, name=deadlock.TALKS, daemon=True).start()

    def bring(self) -> None:
        """Starts one process more, and lets the ranks know when it is there."""
        try:
            nursery.bring()
        except Exception as error:  # noqa: BLE001  the job goes on with those that it has
            sys.stderr.write(f"ddp: no process more can be started for the reserve: {error}\n")
            self.standing = self.standing._replace(barren=True)
        else:
            calls.say_ready()

    def _run(self) -> None:
        try:
            while self.meeting is None:
                self._take_part()
        except BaseException:  # noqa: BLE001  it is of no use any more, and others wait for its answers: it is lost
            traceback.print_exc()
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def _take_part(self) -> None:
        """In the next meeting."""
        watching = world.watching()
        assert watching is not None
        comes, self._comes = self._comes, False
        if not comes:
            watching.noticed.wait()
        try:
            with nursery.turn():
                if not comes:
                    world.untold(math.inf)
                    world.shrink()
                if nursery.has_brought():
                    calls.say_unready()
                meeting = meet(self.standing)
        except Exception as error:
            if not world.is_behind(error):
                raise
            nursery.drop()
            return
        _, standings, deal, place = meeting
        working, joined, promoted, refused = deal[:4]
        own = standings[place]
        if not working:
            os.kill(os.getpid(), signal.SIGKILL)  # nobody has the state of the job any more
        if place in refused:
            raise RuntimeError(
                f"a process that was to replace rank {own.number} has made {own.made[0]} models and {own.made[1]} "
                "checkpoint.Managers when it comes to its first step, but the ranks have not made as many: what there "
                "is of them is to be made before the first step (docs/howto/elastic.md)"
            )
        if place in promoted:
            world.rename(promoted[place])
            self.standing = Standing(STARTING, promoted[place])
            self.rank = sum(each.role != WAITING for each in standings) + [*promoted].index(place)
            self.promoted.set()
            self.wanted.set()
        if place == deal.nurse and deal.waiting < ENOUGH and nursery.has_brought():
            self.wanted.set()
        if place in joined:
            self.meeting = meeting
            self._tell()
            self.joined.set()


_seat: _Seat | None = None


def stand_by(comm: "MPI.Intracomm", joined: Callable[[], None]) -> int:
    """Collective with the ranks' entering of the world. Returns when this process is to replace one: its number.

    joined: called when it is a rank.
    """
    global _seat
    if is_spawned():
        world.come_in()
    else:
        world.begin(comm.Dup())
    _seat = _Seat(joined)
    while True:
        _seat.wanted.wait()
        _seat.wanted.clear()
        if _seat.promoted.is_set():
            return world.own_number()
        if nursery.has_brought():  # or one has come while it was wanted again
            _seat.bring()


def outside() -> int | None:
    """The rank that this process is going to be, as far as is known; None where it is one."""
    return None if _seat is None or _seat.joined.is_set() else _seat.rank


def join(own: Standing) -> Meeting:
    """Waits until the ranks have taken this process in, which is ready now."""
    assert _seat is not None
    _seat.standing = own._replace(role=READY)
    calls.say_ready()
    _seat.joined.wait()
    assert _seat.meeting is not None
    return _seat.meeting
