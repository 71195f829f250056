"""Tracebacks as users see them: without the frames of the engine, of ddp and of code that the engine writes itself.

ALLSTRIDE_TRACEBACK=full, an environment variable, shows all frames. Only what is printed is shortened, when it is
printed: by the interpreter at its end and at the end of a thread, by ddp and ddprun for a rank that fails, in the text
of a data loader's worker. Debuggers, test runners and `except` clauses meet exceptions as they are.

The frames of all other files stay, wherever they stand: a module's forward, a hook, a custom function's backward. An
exception in the chain or in a group that went through no code of a user's keeps its last frame; where that holds for
all of them, the mistake is ours, and nothing is hidden.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from engine.errors.callers import INTERNAL

SWITCH = "ALLSTRIDE_TRACEBACK"

_STANDARD_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED = (
    os.path.join(_STANDARD_LIBRARY, "site-packages", ""),
    os.path.join(_STANDARD_LIBRARY, "dist-packages", ""),
)


def hide_frames_of(package: str) -> None:
    """Counts the files beside and below `package`, its `__file__`, among those whose frames are hidden."""
    INTERNAL.append(os.path.join(os.path.dirname(os.path.abspath(package)), ""))


@contextmanager
def shortened(error: BaseException) -> Iterator[int]:
    """Within, `error` and the exceptions it is chained to have the tracebacks that users see; yields how many frames
    they lack.
    """
    before = [] if os.environ.get(SWITCH) == "full" else _tracebacks(error)
    if not any(_is_the_users(frame) for _, trace in before for frame in _frames(trace)):
        before = []
    hidden = 0
    try:
        for each, trace in before:
            shown = _frames(trace)
            kept = [frame for frame in shown if not _is_internal(frame)]
            if not any(map(_is_the_users, kept)):
                kept += [frame for frame in shown[-1:] if _is_internal(frame)]
            hidden += len(shown) - len(kept)
            _put(each, _chained(kept))
        yield hidden
    finally:
        for each, trace in before:
            _put(each, trace)


def format_exception(error: BaseException) -> list[str]:
    """`traceback.format_exception` as users see it, with a last line that says what is hidden."""
    with shortened(error) as hidden:
        return traceback.format_exception(error) + ([notice(hidden)] if hidden else [])


def notice(hidden: int) -> str:
    """The line that says so, with its end."""
    return f"({hidden} frame{'s' * (hidden > 1)} inside allstride not shown; {SWITCH}=full shows all)\n"


def install() -> None:
    """Has the interpreter print tracebacks so, also those that end a thread, unless somebody else prints them."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_of_thread


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _printed(error, lambda: sys.__excepthook__(kind, error, trace))


def _print_of_thread(args: Any) -> None:
    if args.exc_value is None or args.exc_type is SystemExit:  # which says nothing
        threading.__excepthook__(args)
    else:
        _printed(args.exc_value, lambda: threading.__excepthook__(args))


def _printed(error: BaseException, print_it: Callable[[], object]) -> None:
    with shortened(error) as hidden:
        print_it()
    if hidden and sys.stderr is not None:
        sys.stderr.write(notice(hidden))


def _tracebacks(error: BaseException) -> list[tuple[BaseException, TracebackType | None]]:
    """The exception, those it is chained to and the members of groups, each with its traceback."""
    found: dict[int, BaseException] = {}  # an exception need not be hashable
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            left += [each.__cause__, each.__context__]
            left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return [(each, each.__traceback__) for each in found.values()]


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames


def _chained(frames: list[TracebackType]) -> TracebackType | None:
    trace = None
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


def _put(error: BaseException, trace: TracebackType | None) -> None:
    BaseException.with_traceback(error, trace)  # by assignment a frozen dataclass would refuse it


def _is_internal(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(tuple(INTERNAL))


def _is_the_users(frame: TracebackType) -> bool:
    """Neither ours nor of the standard library, which has the outermost frames of a thread and of `python -m`."""
    name = frame.tb_frame.f_code.co_filename
    of_python = name.startswith(("<frozen ", _STANDARD_LIBRARY)) and not name.startswith(_INSTALLED)
    return not (of_python or _is_internal(frame))
