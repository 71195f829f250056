"""The backward that is going on: the Reducers that take part in it, and what they do together at its end.

There are several where several wrapped modules are in one graph. A Reducer takes part from its first gradient on, or
where an exception comes before that: the other ranks may have had theirs.
"""

from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from engine.autograd import graph

if TYPE_CHECKING:
    from ddp.gradients.reducer import Reducer

reducers: "WeakValueDictionary[int, Reducer]" = WeakValueDictionary()
"""All there are, by their number."""

_numbers = count()
_running: "list[Reducer]" = []


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


def failed(who: str) -> RuntimeError:
    """The error on the ranks whose own backward went well."""
    return RuntimeError(
        f"DistributedDataParallel: an exception ended the backward of {who}, so the gradients of this step are no "
        "averages; the cause is in that rank's output"
    )


def _finish() -> None:
    """The end: all start what is left before one of them waits, in a common order."""
    taking_part = sorted(_running, key=lambda reducer: reducer.number)
    for reducer in taking_part:
        reducer.start_rest()
    failures = [failure for reducer in taking_part if (failure := reducer.collect()) is not None]
    _running.clear()
    if failures:
        raise failed(failures[0])
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
