"""What a job does when ranks are lost (`ddprun --elastic`): the others go on, and nothing of the job is lost.

The ranks go from one transaction to the next: a step, or what stands between two steps (an evaluation, a checkpoint).
Nothing that lasts changes before its commit, in which all ranks meet: then each of them has the sums of all gradients.
That is before an optimizer's first step, or at the end of what has none. Whoever comes out of that meeting knows that
all others have come to it. So when a rank is lost, those that are left tell each other how far they were:

* somebody has left the meeting: those that were in it go on from there, too;
* nobody has: all of them run the transaction again from its start, with the shards dealt anew.

What a rank does after the commit needs no other rank. Parameters and the optimizer's state change then only, gradients
are dropped where a shard begins, and the rest that a step may change is put back here: buffers, random numbers, the
place in the data.

A process that takes the place of a lost rank (`ddp.losses.reserve`) joins in the same way: all are called together as
if somebody were lost, at the beginning of a step, and before that step is run it gets what the others have.
"""

import os
import pickle
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet

import numpy as np

import engine
from ddp import losses
from ddp.groups.group import leave_behind
from ddp.job.handing_over import give, refuse_unknown, take
from ddp.job.telling import say, tell
from ddp.watching.progress import forbid
from ddp.watching.standstill import none_stands_still
from ddp.watching.watchdog import group_timeout, host_timeout
from ddp.world.bootstrap import abort
from ddp.world.ranks import name_ranks
from engine.optim import Optimizer, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from ddp.job.job import Job

T = TypeVar("T")

_OVER = (
    "ddprun --elastic: this talks to other ranks after optimizer.step() in the function of Job.run, which could not be "
    "run again if one of them were lost now; do it before the step, or in Job.between"
)


_STEP_FIRST = (
    "ddprun --elastic MIN:N: this process takes the place of a lost rank, and has got the job's state in "
    "checkpoint.Manager.restore; the other ranks are in a step, so no Job.between can come before Job.run"
)
_LOOK = 0.01  # seconds between looks for a process that is ready to work
_UNTOLD = 10.0  # seconds after which MPI will not be told any more that a process has ended


class _Again(RuntimeError):
    """The ranks that are left are together again, and run the transaction once more."""


class Recovery:
    """Of the one job of a process. Raises ValueError where there is one already."""

    def __init__(self, job: "Job") -> None:
        losses.attempt_by(self.attempt, self.come)
        self._job = job
        self._done = 0  # transactions that are committed
        self._inside = self._runs = self._meets = self._committed = False
        self._outside = losses.outside() is not None  # does alone what the others do together
        self._came = False  # and its first step has not begun
        self._current = not self._outside  # has the state of the job
        self._lacking: list[int] = []  # ranks that have not, the same on every rank
        self._lost: list[losses.Member] = []  # of whom nobody has told yet
        self._lost_of_reserve: list[losses.Member] = []
        self._futile = 0  # see `ddp.losses.Standing`
        self._relieved: losses.Member | None = None  # who is to end, the same on every rank
        self._limit = losses.limit()
        self._failures: tuple[float, ...] = ()  # when, the same on every rank
        self._known: WeakSet[Optimizer] = WeakSet()  # those that a replacement gets
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def attempt(self, body: Callable[[], T], runs: bool = False) -> T:
        """Runs `body`, and again where a rank is lost meanwhile, until it is committed. Returns what it returns.

        Within a transaction it is a part of that. runs: whether it is a step, and not something between two.
        """
        if self._inside:
            return body()
        if self._outside and not runs:
            result = body()
            self._job.settle(True)
            return result
        if self._outside:
            self.come()
        if self._came and not runs:
            raise RuntimeError(_STEP_FIRST)
        self._came, self._runs = False, runs
        while True:
            self._await_others()
            before = self._copy()
            self._inside, self._committed = True, False
            recovered = False
            try:
                if self._lacking:
                    self._hand_over()
                    before = self._copy()
                result = body()
                self._commit()
            except Exception as error:
                before[0]()
                recovered = isinstance(error, _Again)
                if self._committed or not (recovered or losses.is_behind(error)):
                    raise
            else:
                return result
            finally:
                self._inside = False
                forbid("")
            if not recovered:
                self.recover()
            before[1]()

    def _copy(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """What puts back that which a step changes before its commit, and what does so with random numbers."""
        streams = engine.get_rng_state(), random.getstate(), np.random.get_state()

        def put_back_streams() -> None:
            engine.set_rng_state(streams[0])
            random.setstate(streams[1])
            np.random.set_state(streams[2])

        return self._job.copy_state(), put_back_streams

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Hook of every optimizer."""
        if self._inside:
            if losses.in_reserve() and optimizer not in self._known:
                refuse_unknown(optimizer)
                self._known.add(optimizer)
            self._commit()

    def _commit(self) -> None:
        """Collective, once a transaction: from here on it is not run again."""
        if self._committed:
            return
        comm = self._job.process_group.comm
        assert comm is not None
        self._meets, failed = True, False
        try:
            with self._job.process_group.meeting("the commit of a step"):
                comm.Barrier()
        except Exception as error:
            if not losses.is_behind(error):
                raise
            failed = True
        elsewhere = failed and self.recover()
        self._meets = False
        if failed and not elsewhere:
            raise _Again("a rank was lost in the commit of this step, which is to be run again")
        self._job.settle(True)
        self._done += 1
        self._committed = True
        if self._inside:
            forbid(_OVER)

    def recover(self) -> bool:
        """Collective over those that are left. Returns whether the transaction of this rank is committed elsewhere."""
        with none_stands_still(host_timeout()):
            while True:
                try:
                    return self._recover()
                except Exception as error:
                    if not losses.is_behind(error):
                        raise

    def _recover(self) -> bool:
        _wait_until_told()
        of_ranks, others = losses.shrink()
        self._lost += of_ranks
        if self._limit is not None:
            failures = [time.monotonic() for each in of_ranks if each != self._relieved]
            self._failures = self._limit.still_count((*self._failures, *failures))
        self._lost_of_reserve += others
        self._futile += len(others)
        return self._go_on(losses.meet(self._standing()))

    def _standing(self) -> losses.Standing:
        job = self._job
        return losses.Standing(
            losses.WORKING,
            losses.own_number(),
            done=self._done,
            meets=self._meets,
            runs=self._runs,
            step=job.step,
            current=self._current,
            shards=job.num_shards,
            made=(len(job.wrapped()), len(losses.keepers)),
            reducers=job.process_group.models,
            failures=self._failures,
            met=losses.met(),
            futile=self._futile,
            reasons=tuple((each.process, why) for each in self._lost if (why := losses.reason(each))),
        )

    def _go_on(self, meeting: losses.Meeting) -> bool:
        """Collective over those that work from now on. Returns whether the transaction of this rank is committed
        elsewhere.
        """
        comm, working, joined = meeting.comm, meeting.deal.working, meeting.deal.joined
        before = [meeting.standings[at] for at in working if at not in joined]
        current = [each for each in before if each.current]
        if not current:
            say("error: nobody is left who has the state of the job; it is ended")
            abort(1)
        self._failures = current[0].failures
        self._futile = 0 if joined else current[0].futile
        watching, relieved = losses.watching(), meeting.deal.relieved
        self._relieved = None if watching is None or relieved is None else watching.members[relieved]
        furthest = losses.furthest(meeting.standings)
        assert all(each.done == furthest or (each.meets and each.done == furthest - 1) for each in before)
        elsewhere = not self._outside and self._done < furthest
        if self._outside:
            self._outside, self._done = False, furthest
            self._job.num_shards = current[0].shards
            self._job.process_group.models = current[0].reducers
        self._lacking = [rank for rank, at in enumerate(working) if at in joined or not meeting.standings[at].current]
        self._job.settle(elsewhere)
        leave_behind(comm)
        self._job.leave_behind()
        made_by_all = min(each.made[1] for each in before)  # who runs ahead may have made one more
        for at, keeper in enumerate([*losses.keepers]):
            if at < made_by_all:
                keeper.leave_behind()
            else:
                keeper.relocate()
        if losses.in_reserve():
            comm.Barrier()  # as in a meeting, before rank 0 may call the next one
        if comm.rank == 0:
            step = max(each.step for each in before) + 1
            tell(meeting, step, self._lost, self._lost_of_reserve)
        self._lost.clear()
        self._lost_of_reserve.clear()
        return elsewhere

    # --- replacing those that were lost -------------------------------------------------------------------------------

    def come(self) -> int | None:
        """A process that is to replace a lost rank takes part from the others' present step on, with what they have.

        Returns how many steps are done; None in another process.
        """
        if not self._outside:
            return self._job.step if self._came else None
        self._came = True
        self._runs = True
        meeting: losses.Meeting | None = losses.join(self._standing())
        while not self._current:
            try:
                if meeting is None:
                    self.recover()
                else:
                    self._go_on(meeting)
                self._hand_over()
            except Exception as error:
                if not losses.is_behind(error):
                    raise
                meeting = None
        return self._job.step

    def _hand_over(self) -> None:
        """Collective: those that have just come get what the others have."""
        group = self._job.process_group
        source = next(rank for rank in range(group.size()) if rank not in self._lacking)
        with group.meeting("the handing over of the job's state"):
            if group.rank == source:
                given = self._give()
                for rank in self._lacking:
                    group.objects().send(given, rank)
            elif group.rank in self._lacking:
                given = group.objects().recv(source=source)
                if isinstance(given, str):
                    raise RuntimeError(f"rank {source} cannot hand the job's state over: {given}")
                take(self._job, pickle.loads(given))
                losses.at_step(self._job.step + 1)
        self._current, self._lacking = True, []

    def _give(self) -> bytes | str:
        """What a replacement gets; in words, why it gets nothing. That is its end, not that of this rank."""
        try:
            return pickle.dumps(give(self._job), protocol=5)
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"

    def _await_others(self) -> None:
        """Before a transaction: lets those in that are ready, and ends the job where too few are left."""
        group, least = self._job.process_group, losses.minimum()
        if self._limit is not None and (too_many := self._limit.passed(self._failures)):
            self._end(too_many)  # before anybody is called: the others do not wait for that here
        if self._runs and group.rank == 0 and losses.call():
            self.recover()
        if self._runs and self._relieved is not None and self._relieved.pid == os.getpid() and not self._lacking:
            losses.give_place()
        too_few = f"of at least {least} ranks are left (--elastic)"
        if group.size() < least and self._runs and losses.coming():
            self._await_replacements()
            too_few += f", and others have not come within {group_timeout():g} s" if losses.coming() else ""
        elif group.size() < least and losses.coming():
            return  # they come at a step
        if group.size() < least:
            self._end(f"{group.size()} {too_few}")

    def _await_replacements(self) -> None:
        """Until there are enough ranks, or none is on its way, or that takes too long."""
        deadline = time.monotonic() + group_timeout()
        with none_stands_still(host_timeout()):
            while self._job.process_group.size() < losses.minimum() and losses.coming():
                if time.monotonic() > deadline:
                    break
                if (self._job.process_group.rank == 0 and losses.call()) or losses.called(_LOOK):
                    self.recover()

    def _end(self, why: str) -> NoReturn:
        """Collective: the job ends with what it has, by a checkpoint where it writes some."""
        if self._lacking:
            self._hand_over()  # for which those wait that have just come
        saved = [where for keeper in [*losses.keepers] if (where := keeper.save_last(self._job.step))]
        if self._job.process_group.rank == 0:
            where = f"step {self._job.step} is saved in {', '.join(saved)}" if saved else "nothing saves its state"
            say(f"error: {why}: the job ends after step {self._job.step}; {where}")
        losses.end_together()
        self._await_end()
        raise SystemExit(1)

    def _await_end(self) -> None:
        """Collective: until all have come out of what they did together, which the end of one would interrupt."""
        group = self._job.process_group
        assert group.comm is not None
        try:
            with group.meeting("the end of the job"):
                group.comm.Barrier()
        except Exception as error:
            if not losses.is_behind(error):  # else one has ended, and nothing is left to do together
                raise


def _wait_until_told() -> None:
    """Ends the job where the MPI library does not come to know that a rank has ended."""
    if untold := losses.untold(_UNTOLD):
        say(
            f"error: {name_ranks([member.number for member in untold])} ended, and the MPI library does not take "
            "notice, so the others cannot go on without it; the job is ended. Start it again from its newest "
            "checkpoint, as ddprun --max-restarts does"
        )
        abort(1)
