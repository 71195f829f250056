"""`run_ranks` and `on_ranks`: a function on every rank of a world of threads."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from ddp.groups import group
from ddp.groups.process_group import ProcessGroup
from ddp.testing.communicator import Comm
from ddp.testing.rooms import Network
from ddp.testing.stand_in import provide_mpi
from ddp.testing.turns import Turns
from ddp.transport import Transport
from ddp.world import bootstrap

P = ParamSpec("P")
T = TypeVar("T")


def run_ranks(size: int, function: Callable[[], T], timeout: float = 60.0) -> list[T]:
    """Runs `function()` on `size` ranks, each a thread in turn; returns what each of them has returned, in rank order.

    All ranks share the process: what `function` reads from outside of itself is one and the same on all of them. Each
    begins with a copy of the caller's default random generator (as each process of a job begins with the same seed).

    Raises what the first rank raises that fails, with its traceback and a note that says which it was; the others end
    then. RuntimeError, saying who waits where, if the ranks wait for each other, or if it is not over after `timeout`
    seconds. ValueError for less than one rank; RuntimeError inside a process group.
    """
    if size < 1:
        raise ValueError(f"run_ranks: expected at least one rank, got {size}")
    provide_mpi()
    return run_on(Turns(size, timeout), function)


def run_on(
    turns: Turns,
    function: Callable[[], T],
    network: Network | None = None,
    transport: Callable[[Any], Transport] | None = None,
) -> list[T]:
    """The same with these turns and this network. transport: how gradients are summed over a communicator, unchecked;
    without, it is chosen and checked as in a job.
    """
    if group.is_initialized():
        raise RuntimeError("run_ranks: this process is in a process group already; call it outside of one")
    rooms: dict[Any, Any] = {}
    ranks = tuple(range(turns.size))

    def begin(rank: int) -> None:
        comm = cast(Any, Comm(turns, rooms, (), ranks, rank, network)) if turns.size > 1 else None
        bootstrap._world = bootstrap.World(rank, turns.size, rank, turns.size, comm, 0)
        chosen = None if transport is None or comm is None else transport(comm)
        group._default = ProcessGroup(rank, ranks, comm, _transport=chosen, name="the default group")

    return turns.run(begin, function)


def on_ranks(*sizes: int, timeout: float = 60.0) -> Callable[[Callable[P, Any]], Callable[P, None]]:
    """Decorator of a test: its body runs on every rank of a world of threads, of each of these sizes in turn.

    Fixtures and parameters stay what they are, the same objects for all ranks.
    """

    def decorate(test: Callable[P, Any]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **keywords: P.kwargs) -> None:
            for size in sizes:
                run_ranks(size, functools.partial(test, *args, **keywords), timeout)

        run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
        return run

    return decorate
