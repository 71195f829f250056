"""Reducer: gathers gradients in buckets and sums a bucket over the ranks as soon as it is full, while backward goes on.

A bucket is one flat buffer of the transport. Each parameter has a view in it with the parameter's own strides
(row-major where those are not dense), and that view *is* its `.grad`: the engine writes the first gradient of a
backward straight into it and adds later ones in place. A listener on each parameter counts the bucket's gradients down.

The rule: **after a backward outside `no_sync`, `.grad` of each parameter is the mean over the ranks of what `.grad` was
on each of them**, where a rank without one counts as zeros (`ddp.reference` says the same in five lines). Whatever was
accumulated before, under `no_sync` or by an earlier backward that nobody zeroed, takes part. Only a parameter that has
had no gradient on any rank since the last time is left as it is, None or not: the header of a bucket counts, for each
parameter, the ranks that had one. So unused parameters need no search and block nobody.

Buckets are started in index order on every rank, whatever order gradients come in, so all ranks issue the same sequence
of sums; what is not full when backward ends is started then.
"""

from collections.abc import Callable, Sequence
from itertools import compress, count
from time import perf_counter
from weakref import WeakValueDictionary, finalize, ref

import numpy as np

import engine
from ddp.buckets import BucketLayout, compute_bucket_assignment, plan_bucket
from ddp.history import with_history_of
from ddp.transport import Transport
from engine import report
from engine.autograd import graph

# Header of a bucket: the weight of this rank's gradients; whether its backward failed, and which rank that was; whether
# it had no gradient for some parameter; then for each parameter whether it had one.
_WEIGHT, _FAILED, _FAILED_RANK, _INCOMPLETE, _USED = 0, 1, 2, 3, 4

Listener = Callable[[bool, engine.Tensor | None], None]


class Bucket:
    """A buffer of the transport, the parameters that lie in it, and which of their gradients are still to come."""

    def __init__(self, transport: Transport, layout: BucketLayout, parameters: Sequence[engine.Tensor]) -> None:
        self.indices = [slot.index for slot in layout.slots]
        owners = [parameters[index] for index in self.indices]
        size = len(self.indices)
        self.buffer = transport.allocate(layout.count, owners[0].dtype.numpy, header=_USED + size)
        flat = engine.from_numpy(self.buffer.array)
        start = flat.storage_offset()  # the transport may hand out the middle of a larger block
        # detach: for the user no views, but their version counter is the bucket's, counted up once for all of them
        views = [flat.as_strided(slot.shape, slot.stride, start + slot.offset).detach() for slot in layout.slots]
        self.members = list(zip(owners, views, strict=True))
        self.flat = flat
        self.fresh = bytearray(size)  # whether a gradient has come since the bucket was last summed
        self.fresh_array = np.frombuffer(self.fresh, np.uint8)
        self.astray = False  # some of them are not in their views
        self.counting = False  # between the first gradient of a backward that is synchronised, and its end
        self.expected = [1] * size  # gradients of each parameter in one backward
        self.missing = [1] * size  # those that have not come yet; below 0: more came than expected
        self.pending = 0  # the sum of those above 0
        self.kept: dict[int, np.ndarray] = {}  # gradients to be put back if no rank had a fresh one


class Reducer:
    """See the module. Making one is collective: buffers are allocated.

    parameters: (name, parameter) of everything to be reduced, without duplicates, alike on every rank. limits: bytes of
    the first, second, ... bucket; the last one repeats. as_view: whether `.grad` is the bucket's memory, or a copy.
    find_unused: do not wait for parameters that the backward does not lead to. static: the first backward counts the
    gradients of each parameter (several where re-entrant checkpoints use it several times), later ones expect as many.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, engine.Tensor]],
        transport: Transport,
        limits: Sequence[int],
        as_view: bool = True,
        find_unused: bool = False,
        static: bool = False,
    ) -> None:
        self.parameters = [parameter for _, parameter in parameters]
        self.transport = transport
        self.synchronize = True  # False inside no_sync: gradients only accumulate
        self.taken_over = False  # by a later Reducer of the same parameters
        self.failed = False  # an exception ended the last backward
        self.layout_bytes = 0  # copied so far because a gradient was not laid out as its view in the bucket
        # perf_counter of the last backward: first gradient, first bucket started, last gradient, everything handed out
        self.times = [0.0, 0.0, 0.0, 0.0]
        self._names = [name for name, _ in parameters]
        self._as_view = as_view
        self._find_unused = find_unused and not static
        self._static = static
        self._learning = static
        self._buckets = [Bucket(transport, layout, self.parameters) for layout in _plan(self.parameters, limits)]
        self._number = next(_numbers)
        self._cursor = 0  # the next bucket to start
        self._flying: list[Bucket] = []  # started and not waited for
        self._attach()

    def _attach(self) -> None:
        """Has the engine tell this Reducer of every gradient, and write it into its bucket."""
        for parameter in self.parameters:
            before = _owners.get(id(parameter))
            if before is not None and any(owned is parameter for owned in before.parameters):
                before.taken_over = True
                before.detach()
            _owners[id(parameter)] = self
        listeners: list[tuple[engine.Tensor, Listener]] = []
        for bucket in self._buckets:
            for slot, (parameter, view) in enumerate(bucket.members):
                listener = _listener(self, bucket, slot)
                graph.listen_to_gradients(parameter, listener, view if self._as_view else None)
                listeners.append((parameter, listener))
        # Parameters outlive the wrapper: what was put on them goes when the wrapper goes.
        self._release = finalize(self, _release, listeners)
        self._release.atexit = False

    def detach(self) -> None:
        """Takes everything off the parameters; gradients that lie in the buckets stay there."""
        self._release()

    def bucket_bytes(self) -> list[int]:
        """Bytes of each bucket, in the order in which they are started."""
        return [bucket.buffer.array.nbytes for bucket in self._buckets]

    # --- during backward ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The first gradient of a backward that is to be synchronised."""
        if self.failed:
            raise RuntimeError(
                "DistributedDataParallel: an exception ended the last backward and its gradients were never summed; "
                "call the wrapped module again before the next backward"
            )
        self._cursor = 0
        reached = graph.are_reached(self.parameters) if self._find_unused else None
        for bucket in self._buckets:
            if reached is not None:
                bucket.expected = [int(reached[index]) for index in bucket.indices]
            bucket.missing = bucket.expected.copy()
            bucket.pending = sum(bucket.expected) + self._learning  # while learning, nothing is ever full
            bucket.counting = True
        if not _running:
            graph.queue_callback(_finish_all, outermost=True, on_error=_give_up_all)
        _running.append(self)
        self.times = [perf_counter(), 0.0, 0.0, 0.0]
        self._start_full_buckets()  # those of which nothing is expected

    def _start_full_buckets(self) -> None:
        while self._cursor < len(self._buckets) and self._buckets[self._cursor].pending == 0:
            self._start(self._buckets[self._cursor])
            self._cursor += 1

    def _start(self, bucket: Bucket) -> None:
        """Hands the bucket over to the transport, with every parameter's `.grad` in its view."""
        if self.times[1] == 0.0:
            self.times[1] = perf_counter()
        # Where each parameter has told in this backward that its gradient is in its view, there is nothing to look
        # after.
        if bucket.pending or bucket.astray or 0 in bucket.expected or 0 in bucket.fresh:
            self._gather(bucket)
        header = bucket.buffer.header
        header[:_USED] = 1, 0, 0, 0 in bucket.fresh
        header[_USED:] = bucket.fresh_array
        bucket.fresh_array[:] = 0
        bucket.astray = False
        self._flying.append(bucket)
        self.transport.start(bucket.buffer, divisor=None)

    def _gather(self, bucket: Bucket) -> None:
        """Brings what every parameter has for a gradient into its view."""
        for slot, (parameter, view) in enumerate(bucket.members):
            gradient = parameter.grad
            if gradient is None:
                bucket.fresh[slot] = 0  # one that came was dropped by a hook
                view.numpy()[...] = 0
            elif gradient is not view:
                self._copy_in(bucket.indices[slot], gradient, view)
            elif not bucket.fresh[slot]:
                bucket.kept[slot] = view.numpy().copy()

    def _copy_in(self, index: int, gradient: engine.Tensor, view: engine.Tensor) -> None:
        if gradient.dtype is not view.dtype or gradient.shape != view.shape:
            raise RuntimeError(
                f"DistributedDataParallel: gradient of {self._names[index]!r}: expected {list(view.shape)} "
                f"{view.dtype}, got {list(gradient.shape)} {gradient.dtype}; convert the model before wrapping it"
            )
        began = perf_counter()
        view.numpy()[...] = gradient.detach().numpy()
        parameter = self.parameters[index]
        if report.is_breach(gradient.stride(), parameter):
            self.layout_bytes += (
                gradient.nbytes if self._as_view else 2 * gradient.nbytes
            )  # the mean is copied back out
            report.note(parameter, gradient.stride(), report.ASSIGNED, perf_counter() - began, "bucket")

    def _check_surplus(self, bucket: Bucket, slot: int) -> None:
        """More gradients of one parameter than expected do no harm as long as its bucket is still here."""
        if bucket not in self._flying:
            return
        name = self._names[bucket.indices[slot]]
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
        raise RuntimeError(
            f"DistributedDataParallel: another gradient of parameter {name!r} came after its bucket was on its way; "
            f"{reason}"
        )

    # --- at the end of backward ---------------------------------------------------------------------------------------

    def _start_rest(self) -> None:
        self.times[2] = perf_counter()
        for bucket in self._buckets[self._cursor :]:
            self._start(bucket)
            self._cursor += 1

    def _collect(self) -> str | None:
        """Waits for all buckets and hands out the results. Returns whose backward failed, in words, or None."""
        failure = None
        for bucket in self._buckets:
            self.transport.wait(bucket.buffer)
            _, failed, rank, incomplete = bucket.buffer.header[:_USED].tolist()
            if failed:
                failure = f"rank {rank:g}" if failed == 1 else f"{failed:g} ranks"
            members = self._restore_unused(bucket) if incomplete else bucket.members
            for parameter, view in members:
                if parameter.grad is not view:
                    self._hand_out(parameter, view)
            bucket.counting = False
            graph.increment_version(bucket.flat)
            if self._learning:
                bucket.expected = [before - rest for before, rest in zip(bucket.expected, bucket.missing, strict=True)]
        self._learning = False
        self._flying.clear()
        self.times[3] = perf_counter()
        return failure

    def _restore_unused(self, bucket: Bucket) -> list[tuple[engine.Tensor, engine.Tensor]]:
        """Puts back the gradients of parameters that no rank used; returns the others."""
        used = bucket.buffer.header[_USED:].tolist()
        for slot, gradient in bucket.kept.items():
            if not used[slot]:
                bucket.members[slot][1].numpy()[...] = gradient
        bucket.kept.clear()
        return list(compress(bucket.members, used))

    def _hand_out(self, parameter: engine.Tensor, mean: engine.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.requires_grad:  # backward(create_graph=True)
            parameter.grad = with_history_of(gradient, mean)
        elif self._as_view:
            parameter.grad = mean
        elif gradient is None:
            parameter.grad = mean.clone()
        else:
            gradient.copy_(mean)

    # --- when backward does not end -----------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """An exception ended this rank's backward. If somebody catches it, `recover` must come before the next one."""
        for bucket in self._buckets:
            bucket.counting = False
        self.failed = True

    def recover(self) -> None:
        """Collective with the backward that failed here: ends it on the ranks that wait for this one, with an error.

        Not at once when the exception comes by: if nobody catches it, its traceback shall be the only one.
        """
        for bucket in self._buckets[self._cursor :]:
            bucket.buffer.header[:] = 0
            bucket.buffer.header[:_USED] = 1, 1, self.transport.rank, 0
            self.transport.start(bucket.buffer, divisor=None)
        for bucket in self._buckets:
            self.transport.wait(bucket.buffer)
            bucket.fresh_array[:] = 0
            bucket.kept.clear()
        self._flying.clear()
        self.failed = False


_numbers = count()
_owners: WeakValueDictionary[int, Reducer] = WeakValueDictionary()  # by id of the parameter
_running: list[
    Reducer
] = []  # between the first gradient of a backward and its end; several for several wrapped modules


def _plan(parameters: Sequence[engine.Tensor], limits: Sequence[int]) -> list[BucketLayout]:
    """Buckets in the order in which they are likely to fill: backward reaches the last registered parameters first."""
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    kinds = [(parameter.dtype, parameter.device) for parameter in parameters]
    order = list(reversed(range(len(parameters))))
    assignment, _ = compute_bucket_assignment([sizes[i] for i in order], [kinds[i] for i in order], limits, order)
    shapes = [tuple(parameter.shape) for parameter in parameters]
    strides = [tuple(parameter.stride()) for parameter in parameters]
    return [plan_bucket(indices, shapes, strides, parameters[indices[0]].element_size()) for indices in assignment]


def _listener(reducer: Reducer, bucket: Bucket, slot: int) -> Listener:
    """What the engine calls when backward has reached a parameter.

    It runs once a parameter and step, so it touches nothing but the bucket: 0.25 µs where that is not full yet. The
    Reducer is held weakly, or the parameter would keep it alive.
    """
    weak, fresh, flying, poll = ref(reducer), bucket.fresh, reducer._flying, reducer.transport.poll
    view = bucket.members[slot][1]

    def on_gradient(arrived: bool, gradient: engine.Tensor | None) -> None:
        if arrived:
            fresh[slot] = 1
        if gradient is not view:
            bucket.astray = True
        if not bucket.counting:
            owner = weak()
            if owner is None or not owner.synchronize:
                return
            owner._begin()
        missing = bucket.missing
        left = missing[slot] = missing[slot] - 1
        if left < 0:
            if arrived:
                _reducer(weak)._check_surplus(bucket, slot)
            return
        bucket.pending = pending = bucket.pending - 1
        if not pending:
            _reducer(weak)._start_full_buckets()
        elif flying:
            poll()

    return on_gradient


def _reducer(weak: "ref[Reducer]") -> Reducer:
    reducer = weak()
    assert reducer is not None  # it is in `_running`
    return reducer


def _release(listeners: list[tuple[engine.Tensor, Listener]]) -> None:
    for parameter, listener in listeners:
        graph.stop_listening(parameter, listener)


def _finish_all() -> None:
    """The end of a backward: all wrapped modules start what is left before one of them waits, in a common order."""
    reducers = _running if len(_running) == 1 else sorted(_running, key=lambda reducer: reducer._number)
    for reducer in reducers:
        reducer._start_rest()
    failures = [failure for reducer in reducers if (failure := reducer._collect()) is not None]
    _running.clear()
    if failures:
        raise RuntimeError(
            f"DistributedDataParallel: an exception ended the backward of {failures[0]}, so the gradients of this step "
            "are no averages; the cause is in that rank's output"
        )


def _give_up_all() -> None:
    for reducer in _running:
        reducer._give_up()
    _running.clear()
