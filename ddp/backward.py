"""The backward that is going on: the Reducers that take part in it, and what they do together at its end.

There are several where several wrapped modules are in one graph.
"""

from typing import TYPE_CHECKING

from engine.autograd import graph

if TYPE_CHECKING:
    from ddp.reducer import Reducer

_running: "list[Reducer]" = []


def enter(reducer: "Reducer") -> None:
    """The first gradient of this Reducer has come."""
    if not _running:
        graph.queue_callback(_finish, outermost=True, on_error=_give_up)
    _running.append(reducer)


def failed(who: str) -> RuntimeError:
    """The error on the ranks whose own backward went well."""
    return RuntimeError(
        f"DistributedDataParallel: an exception ended the backward of {who}, so the gradients of this step are no "
        "averages; the cause is in that rank's output"
    )


def _finish() -> None:
    """The end: all start what is left before one of them waits, in a common order."""
    reducers = sorted(_running, key=lambda reducer: reducer.number)
    for reducer in reducers:
        reducer.start_rest()
    failures = [failure for reducer in reducers if (failure := reducer.collect()) is not None]
    _running.clear()
    if failures:
        raise failed(failures[0])
    for reducer in reducers:
        reducer.follow_order()


def _give_up() -> None:
    """An exception ended it."""
    for reducer in _running:
        reducer.give_up()
    _running.clear()
