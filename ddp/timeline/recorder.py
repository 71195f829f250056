"""`timeline`: where the time of data-parallel steps goes on every rank, and which rank the others wait for.

It costs nothing when it is off: entering it has backward, the Reducer and what the watchdog counts tell it of what
happens, and leaving it ends that. On, it adds 10 µs to a step of 110. How waiting is told from work
is in `ddp.timeline.step_times`. Compare Horovod's timeline and the straggler summary of DeepSpeed's communication log.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from ddp.gradients.bucket import Bucket
from ddp.gradients.reducer import Reducer
from ddp.groups.process_group import ProcessGroup
from ddp.timeline import step_report, step_times
from ddp.timeline.step_report import Verdict
from ddp.timeline.step_times import Blocked, BucketTrip, Meeting, Record, Span, Step
from ddp.training.parallel import DistributedDataParallel
from ddp.watching import progress
from ddp.watching.progress import Channel
from engine.autograd import graph
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
        steps.save("steps.html")  # and a page for a browser, which needs plotly
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
        self._exits = ExitStack()
        self._phase: tuple[str, float] | None = None  # the outermost that is going on
        self._record = Record(-1, 0.0)  # of the last block
        self._state = "not entered"
        self._outcome: tuple[str, Verdict] | None = None
        self._trace: list[dict[str, Any]] = []  # on the first rank, as is:
        self._taken: tuple[list[int], list[list[Step]]] = [], []  # the steps of the summary, by rank

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
        """The first rank of the module's group writes the steps of all ranks; the others do nothing.

        path: where it ends in ".html", a page of pictures to open in a browser, which needs plotly; else trace events
        (JSON) for chrome://tracing or ui.perfetto.dev. Raises: RuntimeError before the block has ended; ImportError
        without plotly.
        """
        text, found = self._result()
        if self._net.process_group.rank != 0:
            return
        if os.fspath(path).endswith(".html"):
            from ddp.timeline.page import page

            table = text.removesuffix(f"\n{found.text}")
            Path(path).write_text(page(self._trace, *self._taken, found.text, table))
        else:
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
        self._exits.callback(setattr, timeline, "_active", False)
        progress.observe(_Waits(record))
        self._exits.callback(progress.observe, None)
        reducer.observer = _Buckets(record, self._end_backward)
        self._exits.callback(setattr, reducer, "observer", None)
        self._net.around_forward = lambda: self._timed("forward")
        self._exits.callback(setattr, self._net, "around_forward", None)
        for handle in (
            graph.watch_backward(lambda: self._timed("backward")),
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ):
            self._exits.callback(handle.remove)
        return self

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        if self._phase is not None:
            yield
            return
        self._phase = name, perf_counter()
        try:
            yield
        finally:
            self._close_phase()

    def _close_phase(self) -> None:
        assert self._phase is not None
        self._record.phases.append(Span(*self._phase, perf_counter()))
        self._phase = None

    def _begin(self, *_: object) -> None:
        self._phase = self._phase or ("optimizer", perf_counter())

    def _end(self, *_: object) -> None:
        if self._phase is not None and self._phase[0] == "optimizer":
            self._close_phase()

    def _end_backward(self, reducer: Reducer) -> None:
        first, done = reducer.times.first, reducer.times.done
        if self._phase is None:  # replayed by engine.compile
            self._record.phases.append(Span("backward", first, done))
        self._record.synchronized.append((done, reducer.times.overlap()["hidden"]))

    # --- at its end ---------------------------------------------------------------------------------------------------

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._exits.close()
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
        self._taken = ranks, taken
        found = step_report.verdict(ranks, taken)
        which = f"steps 2 to {count}" if count > 1 else f"{count} step"
        clock = f"clocks aligned to within {1e6 * exactness:.0f} µs" if exactness else "one clock for all ranks"
        head = f"ms, medians of {which}; hidden: share of the communication; {clock}"
        return f"{head}\n{step_report.table(ranks, taken)}\n{found.text}", found


class _Waits:
    """Keeps how long the main thread waited for what, and when this rank has done its part of which meeting."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._since = 0.0

    def contributed(self, channel: Channel, number: int) -> None:
        """See `ddp.watching.progress.Observer`."""
        arrivals: dict[Meeting, float] = self._record.arrivals
        arrivals[channel.name, number] = perf_counter()
        self._record.members[channel.name] = () if channel.anybody else channel.ranks

    def wait_changes(self, wait: progress.Wait | None) -> None:
        """See `ddp.watching.progress.Observer`."""
        now = perf_counter()
        if wait is not None:
            self._record.blocked.append(Blocked((wait.channel.name, wait.number), wait.label, self._since, now))
        self._since = now


class _Buckets:
    """Keeps the way of every bucket."""

    def __init__(self, record: Record, ended: Callable[[Reducer], None]) -> None:
        self._record = record
        self._filled: dict[int, tuple[float, int]] = {}  # by id of a bucket under way: since when; waits before that
        self.backward_ended = ended

    def bucket_filled(self, bucket: Bucket) -> None:
        """See `ddp.gradients.observer`."""
        self._filled[id(bucket)] = perf_counter(), len(self._record.blocked)

    def bucket_handed_out(self, bucket: Bucket) -> None:
        """See `ddp.gradients.observer`."""
        done = perf_counter()
        filled, before = self._filled.pop(id(bucket))
        meeting = bucket.channel and (bucket.channel.name, bucket.turn)
        # on a thread of a GPU no wait is noted: then all of the time counts as that of the sum
        summed = max((wait.end for wait in self._record.blocked[before:] if wait.meeting == meeting), default=done)
        self._record.buckets.append(BucketTrip(bucket.number, bucket.label, filled, summed, done))
