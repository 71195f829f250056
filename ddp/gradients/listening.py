"""How the engine tells Reducers of a backward: of each gradient, of its end, and of an exception that ended it.

A listener on each parameter counts its bucket down. Several Reducers take part in a backward where several wrapped
modules are in one graph: each from its first gradient on, or where an exception comes before that: the other ranks may
have had theirs. At the end all of them do together what is left.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, finalize, ref

import engine
from ddp.gradients import failing
from ddp.gradients.bucket import Bucket
from ddp.gradients.order import GradientOrder
from ddp.gradients.stage import Stage
from engine.autograd import graph

if TYPE_CHECKING:
    from ddp.gradients.reducer import Reducer

Listener = Callable[[bool, engine.Tensor | None], None]

reducers: "WeakValueDictionary[int, Reducer]" = WeakValueDictionary()
"""All there are, by their number."""

_numbers = count()
_running: "list[Reducer]" = []  # those that take part in the backward that is going on
_owners: "WeakValueDictionary[int, Reducer]" = WeakValueDictionary()  # by id of the parameter

# Gradients on a GPU come from a thread of the engine's, those in host memory from the one that called backward; but
# Reducers and transports know one thread at a time.
_turn = threading.RLock()


def listen(
    reducer: "Reducer", buckets: Sequence[Bucket], order: GradientOrder | None, as_view: bool
) -> "finalize[[list[tuple[engine.Tensor, Listener]]], Any]":
    """Has the engine tell this Reducer of every gradient and, with `as_view`, write it into its bucket.

    An earlier Reducer of the same parameters is detached. order: notes the gradients meanwhile. Returns what ends it;
    parameters outlive the wrapper, so it also ends with the Reducer.
    """
    for parameter in reducer.parameters:
        before = _owners.get(id(parameter))
        if before is not None and before is not reducer and any(owned is parameter for owned in before.parameters):
            before.taken_over = True
            before.detach()
        _owners[id(parameter)] = reducer
    listeners: list[tuple[engine.Tensor, Listener]] = []
    threads = any(bucket.streams is not None for one in reducers.values() for bucket in one.buckets.all)
    for bucket in buckets:
        for slot, (parameter, view) in enumerate(bucket.members):
            listener = _listener(reducer, bucket, slot)
            if threads:
                listener = _in_turn(listener)
            if order is not None:
                listener = order.noting(bucket.indices[slot], listener)
            graph.listen_to_gradients(parameter, listener, view if as_view else None)
            listeners.append((parameter, listener))
    release = finalize(reducer, _release, listeners)
    release.atexit = False
    return release


def _listener(reducer: "Reducer", bucket: Bucket, slot: int) -> Listener:
    """What the engine calls when backward has reached a parameter.

    It runs once a parameter and step, so it touches nothing but the bucket: 0.25 µs where that is not full yet. The
    Reducer is held weakly, or the parameter would keep it alive.
    """
    weak, fresh, flying, poll = ref(reducer), bucket.fresh, reducer.flying, reducer.buckets.poll
    view, missing, filling = bucket.members[slot][1], bucket.missing, Stage.FILLING

    def on_gradient(arrived: bool, gradient: engine.Tensor | None) -> None:
        if arrived:
            fresh[slot] = 1
        if gradient is not view:
            bucket.astray = True
        if bucket.stage is not filling:
            owner = weak()
            if owner is None or not owner.admit(bucket, slot, arrived):
                return
        left = missing[slot] = missing[slot] - 1
        if left < 0:  # more than expected do no harm as long as the bucket is here
            return
        bucket.pending = pending = bucket.pending - 1
        if not pending:
            owner = weak()
            assert owner is not None  # its backward is going on
            owner.start_full_buckets()
        elif flying:
            poll()

    if bucket.streams is None:
        return on_gradient
    note = bucket.streams.note

    def on_device_gradient(arrived: bool, gradient: engine.Tensor | None) -> None:
        note()
        on_gradient(arrived, gradient)

    return on_device_gradient


def _in_turn(listener: Listener) -> Listener:
    def on_gradient(arrived: bool, gradient: engine.Tensor | None) -> None:
        with _turn:
            listener(arrived, gradient)

    return on_gradient


def _release(listeners: list[tuple[engine.Tensor, Listener]]) -> None:
    for parameter, listener in listeners:
        graph.stop_listening(parameter, listener)


# --- together ---------------------------------------------------------------------------------------------------------


def register(reducer: "Reducer") -> int:
    """Its number: a common order of the Reducers on all ranks."""
    number = next(_numbers)
    reducers[number] = reducer
    return number


def enter(reducer: "Reducer") -> None:
    """The first gradient of this Reducer has come."""
    if not _running:
        graph.queue_callback(_finish, outermost=True)
    _running.append(reducer)


def _finish() -> None:
    """The end: all start what is left before one of them waits, in a common order."""
    taking_part = sorted(_running, key=lambda reducer: reducer.number) if len(_running) > 1 else [*_running]
    for reducer in taking_part:
        reducer.start_rest()
    failures = [failure for reducer in taking_part if (failure := reducer.collect()) is not None]
    _running.clear()
    if failures:
        raise failing.failed(failures[0])
    for reducer in taking_part:
        reducer.judge_drift()
        reducer.follow_order()


def _give_up() -> None:
    """An exception ended it."""
    for reducer in [*reducers.values()]:
        reducer.notice_failure()
    for reducer in _running:
        reducer.give_up()
    _running.clear()


graph.watch_failures(_give_up)
