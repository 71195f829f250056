"""Reducer: gathers gradients in buckets and sums a bucket over the ranks as soon as it is full, while backward goes on.

A bucket is one flat buffer of the transport. Each parameter has a view in it with the parameter's own strides
(row-major where those are not dense), and that view *is* its `.grad`: the engine writes the first gradient of a
backward straight into it and adds later ones in place. A listener on each parameter counts the bucket's gradients down.

The rule: **after a backward outside `no_sync`, `.grad` of each parameter is the mean over the ranks of what `.grad` was
on each of them**, where a rank without one counts as zeros (`ddp.gradients.reference` says the same in five lines).
Whatever was accumulated before, under `no_sync` or by an earlier backward that nobody zeroed, takes part. Only a
parameter that has had no gradient on any rank since the last time is left as it is, None or not: the header of a bucket
counts, for each parameter, the ranks that had one. So unused parameters need no search and block nobody.

Buckets are started in index order on every rank, whatever order gradients come in, so all ranks issue the same sequence
of sums; what is not full when backward ends is started then. At first they follow the order of registration, backwards;
the first backward that is synchronised shows the true order, in which they are then planned anew
(`ddp.gradients.order`).
"""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any
from warnings import warn

import engine
from ddp.execution.futures import Future
from ddp.gradients import listening
from ddp.gradients.bucket import SILENCE, Bucket
from ddp.gradients.building import BucketBuilder, watch
from ddp.gradients.drift import Drift, in_words, is_in
from ddp.gradients.grad_bucket import GradBucket
from ddp.gradients.observer import Observer
from ddp.gradients.order import GradientOrder
from ddp.gradients.stage import Stage
from ddp.transport import Transport
from ddp.watching.progress import Channel
from engine.autograd import graph


class Reducer:
    """See the module. Making one is collective: buffers are allocated.

    parameters: (name, parameter) of everything to be reduced, without duplicates, alike on every rank. transport: of
    all buckets, or one for each device that parameters are on. limits: bytes of the first, second, ... bucket; the last
    one repeats. as_view: whether `.grad` is the bucket's memory, or a copy.
    find_unused: do not wait for parameters that the backward does not lead to. static: the first backward counts the
    gradients of each parameter (several where re-entrant checkpoints use it several times), later ones expect as many.
    delayed: parameters whose buckets come last. exchange: gathers a small value of every rank, in rank order; without
    it, or with `find_unused`, buckets stay as they were planned first. shards: how many the sums are made of, where a
    job says so (`ddp.job`); each has a backward after `begin_shard`, and the one of a rank's last shard is summed.
    leave_unused: `.grad` of a parameter that had no gradient on this rank stays as it is, even if another rank had one.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, engine.Tensor]],
        transport: Transport | Mapping[engine.device, Transport],
        limits: Sequence[int],
        as_view: bool = True,
        find_unused: bool = False,
        static: bool = False,
        delayed: Sequence[engine.Tensor] = (),
        exchange: Callable[[Any], list[Any]] | None = None,
        shards: int | None = None,
        leave_unused: bool = False,
    ) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        transports = transport if isinstance(transport, Mapping) else {parameters[0][1].device: transport}
        self.transport = next(iter(transports.values()))
        self.poll = self.transport.poll if len(transports) == 1 else _poll_all([*transports.values()])
        self.synchronize = True  # False inside no_sync: gradients only accumulate
        self.taken_over = False  # by a later Reducer of the same parameters
        self.failed = False  # an exception ended the last backward
        self.no_averages = False  # what the last backward left is not averaged, since it failed on some rank
        self.observer: Observer | None = None
        self.forwards = 0  # that recorded, so far: the wrapper counts them
        self.backwards = 0  # that have been summed, so far
        self.on_summed: Callable[[list[engine.Tensor]], None] | None = None  # takes a bucket's parameters
        self.weight = 1.0  # of this rank's gradients in the mean
        self.last_shard = True  # the one that backward is of
        self._shards = shards
        self._owed = 0  # backward passes until the step's gradients are summed
        self._may_begin = shards is None  # `begin_shard` was called
        self._first_shard = True
        self.drift: Drift | None = None  # what this rank says of its replica
        self._exchange = exchange
        # perf_counter of the last backward: first gradient, first bucket started, last gradient, everything handed out
        self.times = [0.0, 0.0, 0.0, 0.0]
        self._as_view = as_view
        self._find_unused = find_unused and not static
        self._static = static
        self._learning = static
        self._hook: Callable[[Bucket, float], Future[engine.Tensor]] | None = None
        self._registered: tuple[Any, Callable[[Any, GradBucket], Future[engine.Tensor]]] | None = None
        self._channel: Channel | None = None  # of the watchdog
        self._builder = BucketBuilder(parameters, transports, limits, as_view, delayed, shards, leave_unused)
        self._layouts = self._builder.plan(list(reversed(range(len(parameters)))))
        self._buckets = self._builder.make(self._layouts, self._channel)
        self._order = None if exchange is None or self._find_unused else GradientOrder(exchange)
        self.rebuilt = False  # buckets follow the order of a backward
        self.same_use = True  # every backward so far led to the same parameters; watched with find_unused only
        self._used: list[bool] | None = None  # which ones, on any rank, in the last backward
        self.number = listening.register(self)
        self._task = -1  # the backward in which the first gradient came last
        self._failure: str | None = None  # whose backward failed, in words
        self._errors: list[Exception] = []  # of buckets that were waited for
        self._to_start: list[Bucket] = []  # of the backward that is going on
        self.flying: list[Bucket] = []  # started, in the order of their start
        self._attach()

    def _attach(self) -> None:
        """Has the engine tell this Reducer of every gradient, and write it into its bucket."""
        self._release = listening.listen(self, self._buckets, self._order, self._as_view)

    def watch(self, channel: Channel) -> None:
        """Let the watchdog know from now on which bucket is waited for."""
        self._channel = channel
        watch(self._buckets, channel)

    def detach(self) -> None:
        """Takes everything off the parameters; gradients that lie in the buckets stay there."""
        self._release()

    def bucket_bytes(self) -> list[int]:
        """Bytes of each bucket, in the order in which they are started."""
        return [bucket.buffer.array.nbytes for bucket in self._buckets]

    def announce_end_of_data(self, out_of_data: bool) -> None:
        """From now on the first bucket says whether this rank has no further batch; see `ranks_out_of_data`."""
        self._buckets[0].out_of_data = out_of_data

    def forget_end_of_data(self) -> None:
        """What ranks said in the last backward counts no more."""
        self._buckets[0].forget_end_of_data()

    def ranks_out_of_data(self) -> int:
        """How many ranks said in the last backward that they have no further batch."""
        return self._buckets[0].ranks_out_of_data()

    def local_gradients(self) -> list[tuple[str, engine.Tensor]]:
        """Name and parameter of the gradients that are not averaged, since something was added under no_sync."""
        found = []
        for bucket in self._buckets:
            if 1 in bucket.fresh:
                found += bucket.local_gradients()
        return found

    @property
    def layout_bytes(self) -> int:
        """Bytes copied so far because a gradient was not laid out as its view in a bucket."""
        return sum(bucket.layout_bytes for bucket in self._buckets)

    def register_hook(self, state: object, hook: Callable[[object, GradBucket], Future[engine.Tensor]]) -> None:
        """Collective: reduce every bucket by `hook(state, bucket)`; its own sum goes on carrying the headers only."""
        if self._hook is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._registered = state, hook
        last = len(self._buckets) - 1

        def reduce(bucket: Bucket, weight: float) -> Future[engine.Tensor]:
            index = self._buckets.index(bucket)
            future = hook(state, GradBucket(bucket, index, index == last, weight))
            if not isinstance(future, Future):
                raise RuntimeError(
                    f"communication hook: callback must return a Future[Tensor], but got {type(future).__name__}"
                )
            return future

        for bucket in self._buckets:
            bucket.separate_header()
        self._hook = reduce

    def set_static(self) -> None:
        """As `static=True` from the start. Raises RuntimeError after the first backward."""
        if self.times[0]:
            raise RuntimeError(
                "set_static_graph() must be called before training loop starts (the first backward was run already)"
            )
        self._static = self._learning = True
        self._find_unused = False

    def hook_name(self) -> str:
        """Of the communication hook; empty without one."""
        return "" if self._registered is None else getattr(self._registered[1], "__name__", "a hook")

    def users(self) -> list[int]:
        """For each parameter, how many ranks had a gradient of it in the last backward."""
        found = {index: users for bucket in self._buckets for index, users in bucket.users().items()}
        return [found[index] for index in range(len(self.parameters))]

    def succeed(self, other: "Reducer") -> None:
        """Collective: take the place of another Reducer, with its hook and its observers; its gradients count here, and
        its forwards.
        """
        if other._registered is not None:
            self.register_hook(*other._registered)
        self.on_summed, self.observer = other.on_summed, other.observer
        self.forwards = other.forwards
        accumulated = {id(parameter) for _, parameter in other.local_gradients()}
        for bucket in self._buckets:
            bucket.count_in(accumulated)

    def overlap(self) -> dict[str, float]:
        """Seconds of the last backward, and the share of its communication that was hidden behind it.

        `backward`: from its first gradient to its last. `communication`: from the start of the first bucket until
        everything was handed out. `exposed`: the part of that after the last gradient. `hidden`: the share before it.
        (Sums are work for the cores, too: what this rank did of them meanwhile is part of its backward.)
        """
        first, started, last, done = self.times
        communication = done - started
        return {
            "backward": last - first,
            "communication": communication,
            "exposed": done - max(started, last),
            "hidden": max(0.0, last - started) / communication if communication else 0.0,
        }

    # --- during backward ----------------------------------------------------------------------------------------------

    def admit(self, bucket: Bucket, slot: int, arrived: bool) -> bool:
        """A gradient, or with `arrived` False the news of none, has come to a bucket that is not filling.

        Whether it counts: as the first of a backward. After an exception that is refused; so is one more than expected.
        """
        if bucket.stage is Stage.IDLE or self.failed:
            if not self.synchronize:
                return False
            self.begin()
        if bucket.stage is not Stage.FILLING and arrived:
            raise self._surplus(bucket, slot)
        return bucket.stage is Stage.FILLING

    def begin(self) -> None:
        """The first gradient of a backward that is to be synchronised."""
        if self.failed:
            raise RuntimeError(
                "DistributedDataParallel: an exception ended the last backward and its gradients were never summed; "
                "call the wrapped module again before the next backward"
            )
        if self._shards is not None:
            if not self._may_begin:
                raise RuntimeError(
                    "DistributedDataParallel: with a job, each shard has one backward outside of no_sync, inside of "
                    "`for ... in job.shards(...)`; this is another one"
                )
            self._may_begin = False
        self._failure = None
        if self._first_shard:
            self._buckets[0].state = SILENCE if self.drift is None else self.drift.state()
        if self._find_unused:
            self._expect_reached()
        for bucket in self._buckets:
            bucket.begin(self._learning)
        self._to_start = self._buckets.copy()
        listening.enter(self)
        self._task = graph.current_task_id(outermost=True)
        self.times = [perf_counter(), 0.0, 0.0, 0.0]
        if not self._buckets[0].pending:  # nothing is expected of it
            self.start_full_buckets()

    def _expect_reached(self) -> None:
        """Only of parameters to which this backward leads."""
        reached = graph.are_reached(self.parameters)
        for bucket in self._buckets:
            bucket.expected = [int(reached[index]) for index in bucket.indices]

    def start_full_buckets(self) -> None:
        """Another bucket is full: it is on its way now, unless an earlier one is not."""
        now = perf_counter()
        to_start = self._to_start
        while to_start and not to_start[0].pending:
            self._start(to_start.pop(0))
        if self.on_summed is not None and self._hook is None:
            self._hand_out_summed()
        if not to_start:
            self.times[2] = now  # of the last gradient; what followed here of the sums is exposed

    def _hand_out_summed(self) -> None:
        """Hands out buckets whose sum is there. Not with a hook: it may wait for the others, who are elsewhere."""
        while self.flying and self.flying[0].transport.is_done(self.flying[0].buffer):
            self._finish_first()

    def _finish_first(self) -> None:
        """The next one in flight. What it raises (a hook's future, all weights 0) waits until all were waited for."""
        bucket = self.flying.pop(0)
        try:
            failure = bucket.wait()
            if failure is not None:
                self._failure = failure
            bucket.hand_out()
            if self.observer is not None:
                self.observer.bucket_handed_out(bucket)
            if self.on_summed is not None and failure is None:
                self.on_summed(bucket.parameters)
            if self._learning:
                bucket.learn()
        except Exception as error:
            if bucket.stage is Stage.FLYING:  # of the transport: what it has not sent others wait for
                raise
            self._errors.append(error)  # `collect` raises it

    def _start(self, bucket: Bucket) -> None:
        if not self.times[1]:
            self.times[1] = perf_counter()
        if self.observer is not None:
            self.observer.bucket_filled(bucket)
        bucket.start(self.weight, self._hook, self.last_shard)
        if self.last_shard:
            self.flying.append(bucket)
        elif self._learning:
            bucket.learn()

    def _surplus(self, bucket: Bucket, slot: int) -> RuntimeError:
        """The error where more gradients of a parameter come than expected, and its bucket is not here any more."""
        if self._static:
            reason = "the graph is not static: the first backward had fewer gradients of this parameter"
        elif self._find_unused:
            reason = (
                "find_unused_parameters was set, and backward does not lead to it: a re-entrant checkpoint hides its "
                "part of the graph; use use_reentrant=False, or leave find_unused_parameters out"
            )
        else:
            reason = (
                "a re-entrant checkpoint used it several times: use use_reentrant=False, or static_graph=True if every "
                "step uses the same parameters equally often"
            )
        return RuntimeError(
            f"DistributedDataParallel: another gradient of parameter {bucket.names[slot]!r} came after its bucket was "
            f"on its way; {reason}"
        )

    # --- at the end of backward ---------------------------------------------------------------------------------------

    def start_rest(self) -> None:
        """No further gradient will come: what is not full goes as it is."""
        self.times[2] = self.times[2] or perf_counter()
        while self._to_start:
            self._start(self._to_start.pop(0))

    def collect(self) -> str | None:
        """Waits for all buckets and hands out the results. Returns whose backward failed, in words, or None."""
        while self.flying:
            self._finish_first()
        if self._errors:
            errors, self._errors = self._errors, []
            raise _first(errors)
        for bucket in self._buckets:
            bucket.enter(Stage.IDLE)
        if self._find_unused and self._failure is None:
            used, before = [bool(ranks) for ranks in self.users()], self._used
            self.same_use, self._used = self.same_use and before in (None, used), used
        self._learning = False
        if self._owed:
            self._owed -= 1
        self.no_averages = self._failure is not None or not self.last_shard
        self.times[3] = perf_counter()
        self.backwards += 1
        if self.observer is not None:
            self.observer.backward_ended(self)
        return self._failure

    def judge_drift(self) -> None:
        """Collective where the first header told of replicas that are not alike: says which, and in what.

        Raises RuntimeError, on every rank, or warns on rank 0.
        """
        if self.drift is None or not self.last_shard or not is_in(self._buckets[0].told):
            return
        assert self._exchange is not None
        text = (
            "DistributedDataParallel: the replicas have drifted apart: "
            f"{in_words(self._exchange(self.drift.said))}. Every rank must take the same steps with the same "
            'optimizer, and load the same file; where replicas are to differ, say on_drift="ignore"'
        )
        if self.drift.raises:
            self.no_averages = True
            raise RuntimeError(text)
        if self.transport.rank == 0:
            warn(text, RuntimeWarning, stacklevel=2)

    def follow_order(self) -> None:
        """Collective, after the first backward that was summed: buckets in the order in which gradients came.

        With a communication hook they stay as they are, since hooks keep state by bucket; and where a parameter is
        frozen by then.
        """
        if self._order is None or not self.last_shard:
            return
        noted, self._order = self._order, None
        if self._hook is not None:
            noted.forget()
            return
        order = noted.agree(self.parameters)
        if order is None:
            return
        self.detach()
        layouts = self._builder.plan(order)
        if layouts != self._layouts:
            self._layouts = layouts
            self._buckets = self._builder.exchange(self._buckets, layouts, self._channel)
            self.rebuilt = True
            if self._channel is not None:
                watch(self._buckets, self._channel)
        self._attach()

    # --- shards -------------------------------------------------------------------------------------------------------

    def begin_shard(self, place: int, count: int) -> None:
        """The next backward is that of the shard at this place of those that this rank carries; gradients are dropped.

        RuntimeError where that of the one before was missing, or failed. Where a step was left in the middle, that is
        told to the ranks that wait for it.
        """
        if place and (self.failed or self._owed != count - place):
            self.check_shard(place, count)
            raise RuntimeError(
                "DistributedDataParallel: an exception ended the backward of an earlier shard of this step; leave the "
                "loop over job.shards(), too"
            )
        if not place:
            self.leave_step()
            for bucket in self._buckets:
                bucket.restart()
            self._owed = count
        self.last_shard = place == count - 1
        self._first_shard = place == 0
        self._may_begin = True
        for parameter in self.parameters:
            parameter.grad = None

    def check_shard(self, place: int, count: int) -> None:
        """The body of this many shards of this rank is over. RuntimeError unless all of them had their backward."""
        if not self.failed and self._owed != count - place:
            raise RuntimeError(
                "DistributedDataParallel: a shard had no backward outside of no_sync(), so its gradients are missing; "
                "run one for each, on a loss of 0 if need be (job.shards)"
            )

    def leave_step(self) -> None:
        """Collective with the backward of the ranks that wait for this one, if its step did not come to an end."""
        if self._owed and not self.failed:
            for bucket in self._buckets:
                bucket.enter(Stage.FILLING)
            self.last_shard = True
            self.give_up()
        if self.failed:
            self.recover()
        self._owed = 0

    # --- without a backward -------------------------------------------------------------------------------------------

    def shadow(self, weight: float) -> None:
        """Collective with the others' backward: take part in it with zeros of this weight. Gradients here are lost."""
        for bucket in self._buckets:
            bucket.enter(Stage.FILLING)
        try:
            for bucket in self._buckets:
                bucket.shadow(weight, self._hook)
            failures = [failure for bucket in self._buckets if (failure := bucket.wait()) is not None]
        except BaseException:
            self.give_up()
            raise
        for bucket in self._buckets:
            bucket.forget()
        if failures:
            raise listening.failed(failures[0])
        self.follow_order()

    # --- when backward does not end -----------------------------------------------------------------------------------

    def give_up(self) -> None:
        """An exception ended this rank's backward. If somebody catches it, `recover` must come before the next one."""
        for bucket in self._buckets:
            if bucket.stage is Stage.FILLING or not (self.last_shard or bucket.stage is Stage.FAILED):
                bucket.enter(Stage.FAILED)
        self.failed = self.no_averages = True

    def notice_failure(self) -> None:
        """An exception has ended a backward. If it leads here and no gradient has come, the other ranks wait for all.

        Called while the engine still knows what that backward leads to.
        """
        if not self.synchronize or self.taken_over or self.failed:
            return
        if self._task == graph.current_task_id(outermost=True) or not any(graph.are_reached(self.parameters)):
            return
        for bucket in self._buckets:
            bucket.enter(Stage.FILLING)
        if self.drift is not None:
            self.drift.state()  # the others had a turn in this backward
        self.give_up()

    def recover(self) -> None:
        """Collective with the backward that failed here: ends it on the ranks that wait for this one, with an error.

        Not at once when the exception comes by: if nobody catches it, its traceback shall be the only one.
        """
        for bucket in self._buckets:
            if bucket.stage is Stage.FAILED:
                bucket.give_up(self.weight, self._hook)
        for bucket in self._buckets:
            if bucket.stage is Stage.FLYING:
                self._land(bucket)
        for bucket in self._buckets:
            bucket.forget()
        self.flying.clear()
        self.failed = False
        self._owed = 0
        for error in self._errors:  # the exception that ended backward was the one to raise
            warn(f"in the backward that an exception had ended: {type(error).__name__}: {error}", RuntimeWarning, 2)
        self._errors.clear()

    def _land(self, bucket: Bucket) -> None:
        try:
            if bucket.wait() is None and self.on_summed is not None:  # as the other ranks do
                bucket.hand_out()
                self.on_summed(bucket.parameters)
        except Exception as error:  # noqa: BLE001 - `recover` tells of it
            self._errors.append(error)


def _first(errors: list[Exception]) -> Exception:
    """The first one, with a note of every other."""
    first = errors[0]
    for text in dict.fromkeys(f"{type(error).__name__}: {error}" for error in errors[1:]):
        if text != f"{type(first).__name__}: {first}":
            first.add_note(f"another bucket: {text}")
    return first


def _poll_all(transports: Sequence[Transport]) -> Callable[[], None]:
    """Of a model with parameters on several devices."""

    def poll() -> None:
        for transport in transports:
            transport.poll()

    return poll
