"""Marks for Nsight's timelines, as torch.cuda.nvtx: nested ranges and single marks, by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.memory.backend import require_cupy

_depth = 0


def range_push(msg: str) -> int:
    """Opens a range; returns how many are open around it."""
    global _depth
    require_cupy().cuda.nvtx.RangePush(msg)
    _depth += 1
    return _depth - 1


def range_pop() -> int:
    """Closes the innermost range; returns how many are open around it."""
    global _depth
    require_cupy().cuda.nvtx.RangePop()
    _depth -= 1
    return _depth


def mark(msg: str) -> None:
    """Marks this moment."""
    require_cupy().cuda.nvtx.Mark(msg)


@contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Context manager and decorator: a range around the block; the message is formatted with the arguments."""
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
