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
from ddp.gradients import failing, listening
from ddp.gradients.bucket import SILENCE, Bucket
from ddp.gradients.buckets import Buckets
from ddp.gradients.drift import Drift, is_in
from ddp.gradients.grad_bucket import BoundHook, Hook, bound
from ddp.gradients.observer import Observer
from ddp.gradients.order import GradientOrder
from ddp.gradients.stage import Stage
from ddp.gradients.times import Times
from ddp.transport import Transport
from ddp.transport.background import BackgroundTransport, FirstSteps
from engine.autograd import graph


class Reducer:
    """See the module. Making one is collective: buffers are allocated.

    parameters: (name, parameter) of everything to be reduced, without duplicates, alike on every rank. transport: of
    all buckets, or one for each device that parameters are on. limits: bytes of the first, second, ... bucket; the last
    one repeats. as_view: whether `.grad` is the bucket's memory, or a copy.
    find_unused: do not wait for parameters that the backward does not lead to. static: the first backward counts the
    gradients of each parameter (several where re-entrant checkpoints use it several times), later ones expect as many.
    delayed: parameters whose buckets come last. exchange: gathers a small value of every rank, in rank order; without
    it, or with `find_unused`, buckets stay as they were planned first. shards: see `ddp.gradients.of_shards`.
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
        *,
        shards: int | None = None,
        leave_unused: bool = False,
    ) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        self.buckets = Buckets(parameters, transport, limits, as_view, delayed, shards, leave_unused)
        self.synchronize = True  # False inside no_sync: gradients only accumulate
        self.weight = 1.0  # of this rank's gradients in the mean
        self.first_shard = self.last_shard = True  # of this rank's in a step; see `ddp.gradients.of_shards`
        self.drift: Drift | None = None  # what this rank says of its replica
        self.observer: Observer | None = None
        self.on_summed: Callable[[list[engine.Tensor]], None] | None = None  # takes a bucket's parameters
        self.hook: tuple[Any, Hook] | None = None  # of the user's, with its state
        self._bound_hook: BoundHook | None = None
        self._exchange = exchange
        self._as_view = as_view
        self._find_unused = find_unused and not static
        self._static = self._learning = static
        # What came of it so far.
        self.taken_over = False  # by a later Reducer of the same parameters
        self.failed = False  # an exception ended the last backward
        self.no_averages = False  # what the last backward left is not averaged, since it failed on some rank
        self.rebuilt = False  # buckets follow the order of a backward
        self.forwards = 0  # that recorded: the wrapper counts them
        self.backwards = 0  # that have been summed
        self.times = Times()  # of the last backward
        moved = self.buckets.transport
        self._first_steps = FirstSteps(moved) if isinstance(moved, BackgroundTransport) else None
        # Of the backward that is going on.
        self.flying: list[Bucket] = []  # started, in the order of their start
        self._to_start: list[Bucket] = []
        self._task = -1  # the backward in which the first gradient came last
        self._failure: str | None = None  # whose backward failed, in words
        self._errors: list[Exception] = []  # of buckets that were waited for
        self.number = listening.register(self)
        self._order = (
            None if exchange is None or self._find_unused else GradientOrder(exchange, self.buckets.transport.rank)
        )
        self._attach()

    def _attach(self) -> None:
        """Has the engine tell this Reducer of every gradient, and write it into its bucket."""
        self._release = listening.listen(self, self.buckets.all, self._order, self._as_view)

    def detach(self) -> None:
        """Takes everything off the parameters; gradients that lie in the buckets stay there."""
        self._release()

    def register_hook(self, state: Any, hook: Hook) -> None:
        """Collective: reduce every bucket by `hook(state, bucket)`; its own sum goes on carrying the headers only."""
        if self.hook is not None:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self.hook = state, hook
        for bucket in self.buckets.all:
            bucket.separate_header()
        self._bound_hook = bound(hook, state, self.buckets.all)

    def set_static(self) -> None:
        """As `static=True` from the start. Raises RuntimeError after the first backward."""
        if self.times.first:
            raise RuntimeError(
                "set_static_graph() must be called before training loop starts (the first backward was run already)"
            )
        self._static = self._learning = True
        self._find_unused = False

    def succeed(self, other: "Reducer") -> None:
        """Collective: take the place of another Reducer, with its hook and its observers; its gradients count here, and
        its forwards.
        """
        if other.hook is not None:
            self.register_hook(*other.hook)
        self.on_summed, self.observer = other.on_summed, other.observer
        self.forwards = other.forwards
        self.buckets.count_in({id(parameter) for _, parameter in other.buckets.local_gradients()})

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
            raise failing.surplus(bucket.names[slot], self._static, self._find_unused)
        return bucket.stage is Stage.FILLING

    def begin(self) -> None:
        """The first gradient of a backward that is to be synchronised."""
        if self.failed:
            raise RuntimeError(
                "DistributedDataParallel: an exception ended the last backward and its gradients were never summed; "
                "call the wrapped module again before the next backward"
            )
        buckets = self.buckets.all
        self._failure = None
        if self.first_shard:
            buckets[0].state = SILENCE if self.drift is None else self.drift.state()
        if self._find_unused:
            self.buckets.expect_reached()
        for bucket in buckets:
            bucket.begin(self._learning)
        self._to_start = buckets.copy()
        listening.enter(self)
        self._task = graph.current_task_id(outermost=True)
        self.times = Times(perf_counter())
        if not buckets[0].pending:  # nothing is expected of it
            self.start_full_buckets()

    def start_full_buckets(self) -> None:
        """Another bucket is full: it is on its way now, unless an earlier one is not."""
        now = perf_counter()
        to_start = self._to_start
        while to_start and not to_start[0].pending:
            self._start(to_start.pop(0))
        if self.on_summed is not None and self.hook is None:
            self._hand_out_summed()
        if not to_start:
            self.times.last = now  # of the last gradient; what followed here of the sums is exposed

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
        if not self.times.started:
            self.times.started = perf_counter()
        if self.observer is not None:
            self.observer.bucket_filled(bucket)
        bucket.start(self.weight, self._bound_hook, self.last_shard)
        if self.last_shard:
            self.flying.append(bucket)
        elif self._learning:
            bucket.learn()

    # --- at the end of backward ---------------------------------------------------------------------------------------

    def start_rest(self) -> None:
        """No further gradient will come: what is not full goes as it is."""
        self.times.last = self.times.last or perf_counter()
        while self._to_start:
            self._start(self._to_start.pop(0))

    def collect(self) -> str | None:
        """Waits for all buckets and hands out the results. Returns whose backward failed, in words, or None."""
        while self.flying:
            self._finish_first()
        if self._errors:
            errors, self._errors = self._errors, []
            raise failing.first_of(errors)
        for bucket in self.buckets.all:
            bucket.enter(Stage.IDLE)
        if self._find_unused and self._failure is None:
            self.buckets.note_use()
        self._learning = False
        self.no_averages = self._failure is not None or not self.last_shard
        self.times.done = perf_counter()
        self.backwards += 1
        if self._first_steps is not None and not self.no_averages:
            self._first_steps.ended(self.times.done)
            if self._first_steps.settled:
                self._first_steps = None
        if self.observer is not None:
            self.observer.backward_ended(self)
        return self._failure

    def judge_drift(self) -> None:
        """Collective where the first header told of replicas that are not alike: see `Drift.tell`."""
        if self.drift is not None and self.last_shard and is_in(self.buckets.all[0].told):
            assert self._exchange is not None
            self.no_averages |= self.drift.raises
            self.drift.tell(self._exchange, self.buckets.transport.rank)

    def follow_order(self) -> None:
        """Collective, after the first backward that was summed: buckets in the order in which gradients came.

        With a communication hook they stay as they are, since hooks keep state by bucket; and where a parameter is
        frozen by then.
        """
        if self._order is None or not self.last_shard:
            return
        noted, self._order = self._order, None
        if self.hook is not None:
            noted.forget()
            return
        order = noted.agree(self.parameters)
        if order is None:
            return
        self.detach()
        self.rebuilt = self.buckets.follow(order)
        self._attach()

    # --- without a backward -------------------------------------------------------------------------------------------

    def shadow(self, weight: float) -> None:
        """Collective with the others' backward: take part in it with zeros of this weight. Gradients here are lost."""
        try:
            failure = failing.shadow(self.buckets.all, weight, self._bound_hook)
        except BaseException:
            self.give_up()
            raise
        if failure is not None:
            raise failing.failed(failure)
        self.follow_order()

    # --- when backward does not end -----------------------------------------------------------------------------------

    def give_up(self) -> None:
        """An exception ended this rank's backward. If somebody catches it, `recover` must come before the next one."""
        failing.fail(self.buckets.all, self.last_shard)
        self.failed = self.no_averages = True

    def notice_failure(self) -> None:
        """An exception has ended a backward. If it leads here and no gradient has come, the other ranks wait for all.

        Called while the engine still knows what that backward leads to.
        """
        if not self.synchronize or self.taken_over or self.failed:
            return
        if self._task == graph.current_task_id(outermost=True) or not any(graph.are_reached(self.parameters)):
            return
        for bucket in self.buckets.all:
            bucket.enter(Stage.FILLING)
        if self.drift is not None:
            self.drift.state()  # the others had a turn in this backward
        self.give_up()

    def recover(self) -> None:
        """Collective with the backward that failed here: ends it on the ranks that wait for this one, with an error."""
        self._errors += failing.recover(self.buckets.all, self.weight, self._bound_hook, self.on_summed)
        self.flying.clear()
        self.failed = False
        for error in self._errors:  # the exception that ended backward was the one to raise
            warn(f"in the backward that an exception had ended: {type(error).__name__}: {error}", RuntimeWarning, 2)
        self._errors.clear()
