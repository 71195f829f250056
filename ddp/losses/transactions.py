"""What ranks do together between two steps, for those who do not know the job (a checkpoint's manager)."""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from ddp.losses.reserve import outside

P = ParamSpec("P")
T = TypeVar("T")


class Attempt(Protocol):
    """`ddp.job.recovery`."""

    def __call__(self, body: Callable[[], T]) -> T:
        """Calls `body`, and again where a rank is lost meanwhile."""
        ...


_attempt: Attempt | None = None
_come: Callable[[], int | None] | None = None


def attempt_by(attempt: Attempt, come: Callable[[], int | None]) -> None:
    """From now on the first mends what a loss interrupts; see `come` for the second."""
    global _attempt, _come
    if _attempt is not None:
        raise ValueError("Job: one that outlives the loss of a rank is the only one of its process (--elastic)")
    _attempt, _come = attempt, come


def come() -> int | None:
    """A process that is to replace a lost rank joins the others now, if its job is made, and gets what they have.

    Returns how many steps are done, as far as it knows; None in other processes.
    """
    if _come is not None:
        return _come()
    return None if outside() is None else 0


def between(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Collective: calls a function in which ranks talk; see `ddp.Job.between`."""
    if _attempt is None:
        return function(*args, **kwargs)
    return _attempt(lambda: function(*args, **kwargs))
