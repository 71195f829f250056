"""`timeline`: where the time of data-parallel steps goes on every rank, and which rank the others wait for.

It costs nothing when it is off: entering it puts clocks around backward, the Reducer's calls for each bucket and what
the watchdog counts, and leaving it takes them away. On, it adds 10 µs to a step of 110. How waiting is told from work
is in `ddp.step_times`. Compare Horovod's timeline and the straggler summary of DeepSpeed's communication log.
"""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from ddp import progress, step_report, step_times
from ddp.gathering import Bucket
from ddp.group import ProcessGroup
from ddp.parallel import DistributedDataParallel
from ddp.progress import Channel
from ddp.step_report import Verdict
from ddp.step_times import Blocked, BucketTrip, Meeting, Record, Span, Step
from engine.autograd import api
from engine.optim import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_BARRIERS = 20  # by which clocks are compared


class timeline:
    """Around a training loop: keeps the times of this rank's steps; its end is collective and compares the ranks.

        with ddp.timeline(net) as steps:
            for x, y in loader:
                optimizer.zero_grad()
                F.mse_loss(net(x), y).backward()
                optimizer.step()
        steps.save("steps.json")  # rank 0 writes a file for chrome://tracing or ui.perfetto.dev
        if ddp.get_rank() == 0:
            print(steps.summary())

    A step ends with the optimizer after a backward that was synchronised; backward under `no_sync` is part of the step
    in which its gradients are averaged. Of each step there is a time waiting for others (until the last rank has come
    to a bucket, or to any other collective: that rank is not waiting, it is the one that is waited for), a time for the
    bytes after that, and what the rank did itself: forward, backward, optimizer and the rest, loading data for one.
    The first step, in which kernels are compiled and buckets planned, is in the file but not in the summary.

    The clocks of ranks on several machines are compared at the end only, so the more they have drifted since, the less
    exact the first steps are. On a GPU times are those of the host. Of steps of `engine.compile` there are the buckets,
    backward from its first gradient on, and the optimizer; their forward is in the rest. A closure that an optimizer
    calls is part of the optimizer.

    net: after its end, `steps.straggler` is the rank that the others wait for, or None; alike on every rank. After an
    exception in the block nothing is compared.
    Raises: TypeError for another module; RuntimeError when one is active already.
    """

    _active = False

    def __init__(self, net: DistributedDataParallel) -> None:
        if not isinstance(net, DistributedDataParallel):
            raise TypeError(f"timeline: expected a DistributedDataParallel, got {type(net).__name__}")
        self._net = net
        self._patches = ExitStack()
        self._phase: tuple[str, float] | None = None  # the outermost that is going on
        self._filled: dict[int, float] = {}  # by id of a bucket under way: since when
        self._record = Record(-1, 0.0)  # of the last block
        self._state = "not entered"
        self._outcome: tuple[str, Verdict] | None = None
        self._trace: list[dict[str, Any]] = []  # on the first rank

    def __str__(self) -> str:
        return repr(self) if self._outcome is None else self.summary()

    def __repr__(self) -> str:
        count = len(self._record.synchronized)
        steps = f"{count} step{'' if count == 1 else 's'}"
        if self._state == "recording":
            return f"<ddp.timeline: recording, {steps} so far>"
        if self._outcome is not None:
            return f"<ddp.timeline: ended, {steps}; {self._outcome[1].text}>"
        return f"<ddp.timeline: {self._state}>"

    @property
    def straggler(self) -> int | None:
        """The rank (its number in the world) that the others wait for; None where none stands out."""
        return self._result()[1].rank

    def summary(self) -> str:
        """Median times of each rank's steps in ms, which rank the others wait for, and how exact the clocks are."""
        return self._result()[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """The first rank of the module's group writes trace events of all ranks (JSON); the others do nothing."""
        self._result()
        if self._net.process_group.rank == 0:
            Path(path).write_text(json.dumps({"traceEvents": self._trace, "displayTimeUnit": "ms"}))

    def _result(self) -> tuple[str, Verdict]:
        if self._outcome is None:
            raise RuntimeError("timeline: there is nothing to show before its block has ended, or after an exception")
        return self._outcome

    # --- while it is on -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if timeline._active:
            raise RuntimeError("timeline: another one is active; leave its block first")
        reducer = self._net.live_reducer()
        group = self._net.process_group
        self._record = record = Record(group.ranks[group.rank], perf_counter())
        self._outcome, self._state = None, "recording"
        timeline._active = True
        self._patches.callback(setattr, timeline, "_active", False)
        self._exchange(progress, "_waiting", _Waits(record))
        self._exchange(Channel, "contribute", _noting_arrivals(record, Channel.contribute))
        self._exchange(api, "run_backward", self._timed("backward", api.run_backward))
        for part, name, timed in (
            (self._net, "forward", self._timed("forward", self._net.forward)),
            (reducer, "_start", self._start),
            (reducer, "_finish", self._finish),
            (reducer, "collect", self._collect),
        ):
            self._patches.callback(vars(part).pop, name)
            vars(part)[name] = timed  # before the method of its class
        self._reducer = reducer
        for handle in (register_optimizer_step_pre_hook(self._begin), register_optimizer_step_post_hook(self._end)):
            self._patches.callback(handle.remove)
        return self

    def _exchange(self, owner: Any, name: str, value: object) -> None:
        self._patches.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **keywords: Any) -> Any:
            if self._phase is not None:
                return function(*args, **keywords)
            self._phase = name, perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                self._close_phase()

        return timed

    def _close_phase(self) -> None:
        assert self._phase is not None
        self._record.phases.append(Span(*self._phase, perf_counter()))
        self._phase = None

    def _begin(self, *_: object) -> None:
        self._phase = self._phase or ("optimizer", perf_counter())

    def _end(self, *_: object) -> None:
        if self._phase is not None and self._phase[0] == "optimizer":
            self._close_phase()

    def _start(self, bucket: Bucket) -> None:
        self._filled[id(bucket)] = perf_counter()
        type(self._reducer)._start(self._reducer, bucket)

    def _finish(self, bucket: Bucket) -> None:
        before = len(self._record.blocked)
        type(self._reducer)._finish(self._reducer, bucket)
        done = perf_counter()
        filled = self._filled.pop(id(bucket))
        meeting = bucket.channel and (bucket.channel.name, bucket.turn)
        # on a thread of a GPU no wait is noted: then all of the time counts as that of the sum
        summed = max((wait.end for wait in self._record.blocked[before:] if wait.meeting == meeting), default=done)
        number = 1 + self._reducer._buckets.index(bucket)
        self._record.buckets.append(BucketTrip(number, bucket.label, filled, summed, done))

    def _collect(self) -> str | None:
        failure = type(self._reducer).collect(self._reducer)
        first, *_, done = self._reducer.times
        if self._phase is None:  # replayed by engine.compile
            self._record.phases.append(Span("backward", first, done))
        self._record.synchronized.append((done, self._reducer.overlap()["hidden"]))
        return failure

    # --- at its end ---------------------------------------------------------------------------------------------------

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._patches.close()
        self._state = "ended" if kind is None else "an exception came, nothing was compared"
        if kind is None:
            self._compare(self._net.process_group)

    def _compare(self, group: ProcessGroup) -> None:
        """Collective: the first rank looks at what all have noted, and tells."""
        if group.comm is None:
            self._outcome = self._evaluate([self._record])
            return
        with group.meeting("the end of a timeline"):
            for _ in range(_BARRIERS):
                before = perf_counter()
                group.comm.Barrier()
                self._record.barriers.append((before, perf_counter()))
            records = group.objects().gather(self._record, root=0)
            self._outcome = group.comm.bcast(None if records is None else self._evaluate(records), root=0)

    def _evaluate(self, records: list[Record]) -> tuple[str, Verdict]:
        clocks = step_times.clock_offsets([record.barriers for record in records])
        exactness = max(wrong for _, wrong in clocks)
        records = [step_times.shifted(record, ahead) for record, (ahead, _) in zip(records, clocks, strict=True)]
        blocked = step_times.pieces(records, exactness)
        steps = step_times.steps(records, blocked)
        self._trace = step_report.chrome_events(records, blocked, steps)
        count = min(map(len, steps))
        taken: list[list[Step]] = [own[1:count] if count > 1 else own[:count] for own in steps]
        ranks = [record.rank for record in records]
        found = step_report.verdict(ranks, taken)
        which = f"steps 2 to {count}" if count > 1 else f"{count} step"
        clock = f"clocks aligned to within {1e6 * exactness:.0f} µs" if exactness else "one clock for all ranks"
        head = f"ms, medians of {which}; hidden: share of the communication; {clock}"
        return f"{head}\n{step_report.table(ranks, taken)}\n{found.text}", found


class _Waits(list[progress.Wait]):
    """In place of the list of what the main thread waits for: keeps how long it was the innermost of them."""

    def __init__(self, record: Record) -> None:
        super().__init__(progress._waiting)
        self._blocked = record.blocked
        self._since = 0.0

    def append(self, wait: progress.Wait) -> None:
        self._cut()
        super().append(wait)

    def pop(self, *_: Any) -> progress.Wait:
        self._cut()
        return super().pop()

    def _cut(self) -> None:
        now = perf_counter()
        if self:
            channel, number, label, _ = self[-1]
            self._blocked.append(Blocked((channel.name, number), label, self._since, now))
        self._since = now


def _noting_arrivals(record: Record, contribute: Callable[[Channel], int]) -> Callable[[Channel], int]:
    arrivals: dict[Meeting, float] = record.arrivals

    def noting(channel: Channel) -> int:
        number = contribute(channel)
        arrivals[channel.name, number] = perf_counter()
        record.members[channel.name] = () if channel.anybody else channel.ranks
        return number

    return noting
