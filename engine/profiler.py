"""`torch.profiler` as a thin face of `engine.trace`: which operators a program calls, how often, and for how long.

Times are those of the host. What ranks wait for is not here: `ddp.timeline` has it. Source of the names: PyTorch's
torch.profiler; memory, stacks and counts of operations are not recorded.
"""

import enum
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from engine.autograd.modes import state
from engine.errors.absent import absent
from engine.reports.trace import Call, trace

__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(enum.Enum):
    """What is recorded; here it is always the host."""

    CPU = 0
    CUDA = 2


class ProfilerAction(enum.Enum):
    """What a step does."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


Schedule = Callable[[int], ProfilerAction]


def supported_activities() -> set[ProfilerActivity]:
    """The host."""
    return {ProfilerActivity.CPU}


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Schedule:
    """Of step `skip_first` on: `wait` steps nothing, `warmup` without being kept, `active` recorded; `repeat` times, or
    for ever with 0. `skip_first_wait`: the first round does not wait.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ValueError(f"schedule: expected active > 0 and no negative number, got {wait=}, {warmup=}, {active=}")
    round_ = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step >= 0 and skip_first_wait:
            step += wait
        if step < 0 or (repeat and step // round_ >= repeat):
            return ProfilerAction.NONE
        place = step % round_
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < round_ - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[["profile"], None]:
    """For `on_trace_ready`: writes each round as a file of trace events (`*.pt.trace.json`) into a folder."""
    if use_gzip:
        raise NotImplementedError("tensorboard_trace_handler: use_gzip=True is not implemented; compress the file")

    def handler(profiler: "profile") -> None:
        Path(dir_name).mkdir(parents=True, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        profiler.export_chrome_trace(os.path.join(dir_name, f"{worker}.{time.time_ns()}.pt.trace.json"))

    return handler


class record_function(ContextDecorator):
    """A block, or a function, under a name of its own in what is recorded; without a profiler it costs nothing."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self._open: tuple[trace, int] | None = None

    def _recreate_cm(self) -> "record_function":
        return record_function(self.name)

    def __enter__(self) -> Self:
        active = next((each for each in state.listeners if isinstance(each, trace)), None)
        self._open = None if active is None else (active, active.begin(self.name, "User"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            active, place = self._open
            active.end(place)


@dataclass(frozen=True)
class FunctionEvent:
    """The calls of one name: times in microseconds, the `self_` one without those of the calls inside."""

    key: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float

    @property
    def name(self) -> str:
        """The same as `key`."""
        return self.key

    @property
    def cpu_time(self) -> float:
        """Of one call in the mean."""
        return self.cpu_time_total / self.count


class EventList(list[FunctionEvent]):
    """What `key_averages` gives."""

    def table(self, sort_by: str | None = None, row_limit: int = 100, **_: Any) -> str:
        """A line a name: its share of the time, its own time, that with what is inside, and calls."""
        order = {"cpu_time_total": "cpu_time_total", "cpu_time": "cpu_time", "count": "count"}
        field = order.get((sort_by or "").removeprefix("self_"), "cpu_time_total")
        field = f"self_{field}" if (sort_by or "").startswith("self_") and field == "cpu_time_total" else field
        events = self if sort_by is None else sorted(self, key=lambda event: -getattr(event, field))
        whole = self.self_cpu_time_total or 1.0
        lines = [
            f"{'Name':<36}{'Self CPU %':>12}{'Self CPU':>14}{'CPU total':>14}{'CPU time avg':>14}{'# of Calls':>12}"
        ]
        lines += [
            f"{event.key:<36}{event.self_cpu_time_total / whole:>12.2%}{event.self_cpu_time_total:>12.3f}us"
            f"{event.cpu_time_total:>12.3f}us{event.cpu_time:>12.3f}us{event.count:>12}"
            for event in list(events)[: row_limit if row_limit > 0 else None]
        ]
        return "\n".join([*lines, f"Self CPU time total: {self.self_cpu_time_total / 1000:.3f}ms"])

    @property
    def self_cpu_time_total(self) -> float:
        """Of all, in microseconds."""
        return sum(event.self_cpu_time_total for event in self)

    def __str__(self) -> str:
        return self.table()


class profile:
    """Records the operators called in the block, or between `start` and `stop`, on this thread and in its backward.

    Args: schedule: says what each step does; a program calls `step()` at the end of each. on_trace_ready: called with
    the profiler at the end of each round, and of the block. The other options say what to record besides, which is not
    done: memory, stacks, shapes (those are in the trace always), counts of operations.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Schedule | None = None,
        on_trace_ready: Callable[["profile"], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        acc_events: bool = False,
        **_: Any,
    ) -> None:
        self._schedule = schedule
        self._ready = on_trace_ready
        self.step_num = 0
        self._trace: trace | None = None  # what is being recorded
        self._calls: list[Call] = []  # of the last round

    def start(self) -> None:
        """Begins."""
        self._take(self._action(0))

    def stop(self) -> None:
        """Ends; what was recorded stays."""
        recording = self._trace is not None
        self._leave(self._action(self.step_num))
        if recording and self._ready is not None:
            self._ready(self)

    def step(self) -> None:
        """A step of the program is over."""
        before, self.step_num = self._action(self.step_num), self.step_num + 1
        if before is ProfilerAction.RECORD_AND_SAVE and self._schedule is not None:
            self._leave(before)
            if self._ready is not None:
                self._ready(self)
        after = self._action(self.step_num)
        if before is ProfilerAction.WARMUP and after is not ProfilerAction.WARMUP:
            self._leave(before)
        self._take(after)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _action(self, step: int) -> ProfilerAction:
        return ProfilerAction.RECORD if self._schedule is None else self._schedule(step)

    def _take(self, action: ProfilerAction) -> None:
        if action is not ProfilerAction.NONE and self._trace is None:
            self._trace = trace()
            self._trace.__enter__()

    def _leave(self, action: ProfilerAction) -> None:
        if self._trace is not None:
            self._trace.__exit__()
            if action is not ProfilerAction.WARMUP:
                self._calls = self._trace.calls
            self._trace = None

    def _recorded(self) -> trace:
        found = trace()
        found.calls = self._calls if self._trace is None else self._trace.calls
        return found

    def events(self) -> list[Call]:
        """The calls in their order (`engine.trace`)."""
        return self._recorded().calls

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """The calls by name. Raises: NotImplementedError for other groups."""
        if group_by_input_shape or group_by_stack_n:
            raise NotImplementedError("key_averages: only groups by name are implemented; events() has the shapes")
        found = self._recorded()
        totals: dict[str, list[float]] = {}
        around: list[str] = []  # the calls that this one is inside of, by depth
        for call, own in zip(found.calls, found.own_seconds(), strict=True):
            entry = totals.setdefault(call.operator, [0, 0.0, 0.0])
            entry[2] += own
            del around[call.depth :]
            if call.operator not in around:  # a recorded call is told around its kernel, under one name
                entry[0] += 1
                entry[1] += call.seconds
            around.append(call.operator)
        return EventList(
            FunctionEvent(name, int(count), total * 1e6, own * 1e6) for name, (count, total, own) in totals.items()
        )

    def export_chrome_trace(self, path: str) -> None:
        """A file for chrome://tracing or ui.perfetto.dev."""
        self._recorded().save_chrome(path)


def __getattr__(name: str) -> Any:
    raise absent("engine.profiler", name)
