"""Runs a script and notes, step by step, when this rank worked and when its gradients were there."""

import runpy
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from weakref import ref

import engine
from ddp.gradients import listening
from ddp.gradients.reducer import Reducer
from ddp.watching import progress
from ddp.watching.progress import Channel
from engine.optim import register_optimizer_step_post_hook

WARM_UP = 5  # steps in which kernels are compiled and buckets planned


@dataclass(frozen=True, slots=True)
class Step:
    """own: seconds without waiting. seconds: with. gradients: after how many of the own ones each was there, and its
    bytes, in that order.
    """

    own: float
    seconds: float
    gradients: list[tuple[float, int]]


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
class _Gradients:
    """Of one Reducer: when the last gradient of each parameter came, by the parameter's place."""

    clock: _Clock
    reducer: "ref[Reducer]"
    summed: int  # backward passes until this was asked last
    came: dict[int, float] = field(default_factory=dict)

    def listen(self, parameters: Sequence[engine.Tensor]) -> None:
        """From the next backward on."""
        for place, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._note, place))

    def _note(self, place: int, _: engine.Tensor) -> None:
        self.came[place] = self.clock.now()

    def take(self) -> list[tuple[float, int]]:
        """What came since this was asked last, if it was summed."""
        reducer, came = self.reducer(), self.came
        self.came = {}
        if reducer is None or reducer.backwards == self.summed or reducer.no_averages:
            return []
        self.summed = reducer.backwards
        return [(time, reducer.parameters[place].nbytes) for place, time in came.items()]


class EnoughError(SystemExit):
    """Ends the script when as many steps as asked for were measured."""


class _Recorder:
    def __init__(self, count: int) -> None:
        self.steps: list[Step] = []
        self.limits: list[int] = []  # of the buckets of the Reducer that was seen last
        self._left = count + WARM_UP
        self._clock = _Clock()
        self._gradients: dict[int, _Gradients] = {}  # by number of their Reducer
        self._began: tuple[float, float] | None = None

    def start(self, exits: ExitStack) -> None:
        progress.observe(self._clock)
        exits.callback(progress.observe, None)
        exits.callback(register_optimizer_step_post_hook(self._end).remove)

    def _end(self, *_: object) -> None:
        """An optimizer has stepped: a step is over if gradients were summed in it."""
        came = sorted(place for gradients in self._gradients.values() for place in gradients.take())
        for number, reducer in listening.reducers.items():
            if number not in self._gradients:
                self._gradients[number] = _Gradients(self._clock, ref(reducer), reducer.backwards)
                self._gradients[number].listen(reducer.parameters)
                self.limits = [*reducer.buckets.limits]
        own, now = self._clock.now(), perf_counter()
        if came and self._began is not None:
            before, began = self._began
            self.steps.append(Step(own - before, now - began, [(time - before, nbytes) for time, nbytes in came]))
            self._left -= 1
        self._began = own, now
        if self._left == 0:
            raise EnoughError


def record(script: str, arguments: Sequence[str], count: int) -> tuple[list[Step], list[int]]:
    """The steps of this rank after the first `WARM_UP`, at most `count`, of running the script as a program, and the
    limits of its buckets.

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
    return steps, recorder.limits
