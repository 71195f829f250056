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
"""

import random
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

import engine
from ddp import losses
from ddp.groups.group import leave_behind
from ddp.watching.progress import forbid
from ddp.watching.standstill import none_stands_still
from ddp.watching.watchdog import host_timeout
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


_UNTOLD = 10.0  # seconds after which MPI will not be told any more that a process has ended


class _Again(RuntimeError):
    """The ranks that are left are together again, and run the transaction once more."""


class Recovery:
    """Of the one job of a process. Raises ValueError where there is one already."""

    def __init__(self, job: "Job") -> None:
        losses.attempt_by(self.attempt)
        self._job = job
        self._done = 0  # transactions that are committed
        self._inside = self._meets = self._committed = False
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def attempt(self, body: Callable[[], T]) -> T:
        """Runs `body`, and again where a rank is lost meanwhile, until it is committed. Returns what it returns.

        Within a transaction it is a part of that.
        """
        if self._inside:
            return body()
        while True:
            self._check_size()
            put_back = self._job.copy_state()
            streams = engine.get_rng_state(), random.getstate(), np.random.get_state()
            self._inside, self._committed = True, False
            recovered = False
            try:
                result = body()
                self._commit()
            except Exception as error:
                put_back()
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
            engine.set_rng_state(streams[0])
            random.setstate(streams[1])
            np.random.set_state(streams[2])

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Hook of every optimizer."""
        if self._inside:
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
        comm, lost = losses.shrink()
        places = comm.allgather((self._done, self._meets, self._job.step))
        furthest = max(done for done, _, _ in places)
        assert all(done == furthest or (meets and done == furthest - 1) for done, meets, _ in places)
        self._job.settle(self._done < furthest)
        leave_behind(comm)
        self._job.leave_behind()
        for keeper in [*losses.keepers]:
            keeper.leave_behind()
        if comm.rank == 0 and lost:
            left = f"{comm.size} rank{'' if comm.size == 1 else 's'}"
            step = max(step for _, _, step in places) + 1
            _say(f"{_in_words(lost, step)}; the job goes on with {left}")
        return self._done < furthest

    def _check_size(self) -> None:
        group, least = self._job.process_group, losses.minimum()
        if group.size() < least:
            self._end(f"{group.size()} of at least {least} ranks are left (--elastic)")

    def _end(self, why: str) -> NoReturn:
        """Collective: the job ends with what it has, by a checkpoint where it writes some."""
        saved = [where for keeper in [*losses.keepers] if (where := keeper.save_last(self._job.step))]
        if self._job.process_group.rank == 0:
            where = f"step {self._job.step} is saved in {', '.join(saved)}" if saved else "nothing saves its state"
            _say(f"error: {why}: the job ends after step {self._job.step}; {where}")
        losses.end_together()
        raise SystemExit(1)


def _wait_until_told() -> None:
    """Ends the job where the MPI library does not come to know that a rank has ended."""
    deadline = time.monotonic() + _UNTOLD
    while untold := losses.untold():
        if time.monotonic() > deadline:
            _say(
                f"error: {name_ranks([member.number for member in untold])} ended in a way of which the MPI library is "
                "not told, as by exit(3) in native code, so the others cannot go on without it; the job is ended. "
                "Start it again from its newest checkpoint, as ddprun --max-restarts does"
            )
            abort(1)
        time.sleep(0.002)


def _in_words(lost: list[losses.Member], step: int) -> str:
    which = name_ranks([member.number for member in lost])
    why = [losses.reason(member) or "killed, or crashed" for member in lost]
    if len(lost) > 1:
        why = [f"rank {member.number}: {words}" for member, words in zip(lost, why, strict=True)]
    return f"{which} {'was' if len(lost) == 1 else 'were'} lost at step {step} ({'; '.join(why)})"


def _say(words: str) -> None:
    sys.stderr.write(f"ddp: {words}\n")
    sys.stderr.flush()
