"""What ranks do together between two steps, for those who do not know the job (a checkpoint's manager)."""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Attempt(Protocol):
    """`ddp.job.recovery`."""

    def __call__(self, body: Callable[[], T]) -> T:
        """Calls `body`, and again where a rank is lost meanwhile."""
        ...


_attempt: Attempt | None = None


def attempt_by(attempt: Attempt) -> None:
    """From now on this mends what a loss interrupts."""
    global _attempt
    if _attempt is not None:
        raise ValueError("Job: one that outlives the loss of a rank is the only one of its process (--elastic)")
    _attempt = attempt


def between(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Collective: calls a function in which ranks talk; see `ddp.Job.between`."""
    if _attempt is None:
        return function(*args, **kwargs)
    return _attempt(lambda: function(*args, **kwargs))
