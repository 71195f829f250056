"""Runs a script and notes, step by step, when this rank worked and when its buckets of gradients were full."""

import runpy
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter

from ddp.gradients import listening
from ddp.gradients.bucket import Bucket
from ddp.gradients.reducer import Reducer
from ddp.watching import progress
from ddp.watching.progress import Channel
from engine.optim import register_optimizer_step_post_hook

WARM_UP = 5  # steps in which kernels are compiled and buckets planned


@dataclass(frozen=True, slots=True)
class Step:
    """own: seconds without waiting. seconds: with. full: after how many of the own ones a bucket was, its bytes and its
    header's.
    """

    own: float
    seconds: float
    full: list[tuple[float, int, int]]


@dataclass(slots=True)
class _Clock:
    """Of this rank's own work: it stands still while the rank waits for others."""

    waited: float = 0.0
    since: float = 0.0  # when the last wait began

    def now(self) -> float:
        return perf_counter() - self.waited

    def contributed(self, channel: Channel, number: int) -> None:
        """See `ddp.watching.progress.Observer`."""

    def wait_changes(self, wait: progress.Wait | None) -> None:
        """See `ddp.watching.progress.Observer`."""
        now = perf_counter()
        if wait is not None:
            self.waited += now - self.since
        self.since = now


@dataclass(slots=True)
class _Buckets:
    """Of one Reducer: those of its last backward."""

    clock: _Clock
    full: list[tuple[float, int, int]] = field(default_factory=list)
    ended: bool = False

    def bucket_filled(self, bucket: Bucket) -> None:
        """See `ddp.gradients.observer`."""
        if self.ended:
            self.full, self.ended = [], False
        self.full.append((self.clock.now(), bucket.buffer.array.nbytes, bucket.buffer.header.nbytes))

    def bucket_handed_out(self, bucket: Bucket) -> None:
        """See `ddp.gradients.observer`."""

    def backward_ended(self, reducer: Reducer) -> None:
        """See `ddp.gradients.observer`."""
        self.ended = True


class EnoughError(SystemExit):
    """Ends the script when as many steps as asked for were measured."""


class _Recorder:
    def __init__(self, count: int) -> None:
        self.steps: list[Step] = []
        self._left = count + WARM_UP
        self._clock = _Clock()
        self._buckets: dict[int, _Buckets] = {}  # by number of their Reducer
        self._began: tuple[float, float] | None = None

    def start(self, exits: ExitStack) -> None:
        progress.observe(self._clock)
        exits.callback(progress.observe, None)
        exits.callback(register_optimizer_step_post_hook(self._end).remove)

    def _end(self, *_: object) -> None:
        """An optimizer has stepped: a step is over if gradients were summed in it."""
        full = sorted(place for buckets in self._buckets.values() if buckets.ended for place in buckets.full)
        for buckets in self._buckets.values():
            buckets.full, buckets.ended = [], False
        for number, reducer in listening.reducers.items():
            if reducer.observer is None:  # else it is this one, or that of a `ddp.timeline` in the script
                self._buckets[number] = reducer.observer = _Buckets(self._clock)
        own, now = self._clock.now(), perf_counter()
        if full and self._began is not None:
            before, began = self._began
            self.steps.append(
                Step(own - before, now - began, [(time - before, nbytes, header) for time, nbytes, header in full])
            )
            self._left -= 1
        self._began = own, now
        if self._left == 0:
            raise EnoughError


def record(script: str, arguments: Sequence[str], count: int) -> list[Step]:
    """The steps of this rank after the first `WARM_UP`, at most `count`, of running the script as a program.

    Raises: what the script raises; RuntimeError when it ends with fewer than two of them.
    """
    recorder = _Recorder(count)
    before, sys.argv = sys.argv, [script, *arguments]
    with ExitStack() as exits:
        exits.callback(setattr, sys, "argv", before)
        recorder.start(exits)
        try:
            runpy.run_path(script, run_name="__main__")
        except EnoughError:
            pass
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
    steps = recorder.steps[WARM_UP:]
    if len(steps) < 2:
        raise RuntimeError(
            f"ddp.forecast: expected at least {WARM_UP + 2} steps of an optimizer after a backward of a "
            f"DistributedDataParallel, outside of ddp.timeline, got {len(recorder.steps)} of {script}"
        )
    return steps
