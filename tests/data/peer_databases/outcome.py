"""What a call comes to: its result, or the error it raises, which is as much a thing to compare."""

from collections.abc import Callable
from typing import Any


def outcome(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The result, or the exception."""
    try:
        return function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever either library raises
        return error


def told(value: Any) -> str:
    """An outcome in words."""
    return f"{type(value).__name__}: {str(value)[:160]}" if isinstance(value, Exception) else "an answer"


def refusals_differ(ours: Any, theirs: Exception) -> str:
    """What differs from an error of that class, or nothing; a class above or below it is the same."""
    if isinstance(ours, type(theirs)) or (isinstance(ours, Exception) and isinstance(theirs, type(ours))):
        return ""
    return f"{told(ours)} where {told(theirs)}"
