"""What ranks do each for itself, and have done together: where one fails, all raise."""

from collections.abc import Callable
from typing import TypeVar

from ddp.groups.group import is_initialized, resolve
from ddp.groups.process_group import ProcessGroup

T = TypeVar("T")

# As seen by the other ranks: the first of these that fits.
_KINDS = (FileNotFoundError, FileExistsError, OSError, MemoryError, TypeError, ValueError, RuntimeError)
FAILURES = (ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError,
            ValueError)  # fmt: skip
"""What writing and reading can raise, that the other ranks are to hear of."""


def ranks_of(group: ProcessGroup | None) -> ProcessGroup:
    """The given group, the default one, or, where there is none, this process alone."""
    if group is None and not is_initialized():
        return ProcessGroup(0, (0,), None, name="no group")
    return resolve(group)


def together(group: ProcessGroup, action: Callable[[], T]) -> T:
    """Collective: what `action` returns here; where it raises on a rank, that error on all, naming the first rank."""
    error: BaseException | None = None
    try:
        result = action()
    except FAILURES as raised:
        error = raised
    raise_first(group, error)
    return result


def raise_first(group: ProcessGroup, error: BaseException | None) -> None:
    """Collective: raises the error of the first rank that has one, on all ranks."""
    told = None
    if error is not None:
        kind = next((each.__name__ for each in _KINDS if isinstance(error, each)), "RuntimeError")
        told = kind, str(error) if kind != "RuntimeError" or isinstance(error, RuntimeError) else repr(error)
    everybody = group.exchange(told)
    if error is not None:
        raise error
    for rank, told in enumerate(everybody):
        if told is not None:
            kind, text = told
            raise next(each for each in _KINDS if each.__name__ == kind)(f"rank {rank}: {text}")
