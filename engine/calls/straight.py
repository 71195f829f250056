"""Kernels that a replay (`engine.compile`) calls itself, without the functions around them that look at arrays to
choose a kernel: shapes and layouts are known by then, and with them the choice. Into buffers, where there are some.

A family says beside its kernels what stands for a function of its own: `@straight(function)` decorates a chooser, which
gets the Layout of the result and, of each argument, its Layout or (of what is no array) its value. Of a function with
several results it gets a tuple of their Layouts, None for one that is not there. It returns the lines of code that do
what the function does, with the same kernels in the same order, or None where the function itself is to be called. What
such a function returns is memory of its own. In the lines stand

* `{0}`, `{1}` ... for the arguments, `{1.T}` for one transposed, `{out}` for the result;
* `{into}`, after other arguments, for the buffer that the result is written to, or nothing where it has fresh memory;
* `{memory}` for that buffer, or for new memory laid out as the result;
* `{out2}`, `{into2}`, `{memory2}` for those of number 2 of several results.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np


class Layout(NamedTuple):
    """How an array lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: np.dtype
    contiguous: bool  # row-major
    fresh: bool  # it owns its memory: it is no view
    memory: int  # a number that it shares with those that look into the same memory

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> int:
        """How many elements there are."""
        return prod(self.shape)

    @property
    def compiled(self) -> bool:
        """Whether compiled kernels take it as it is: float32 or float64, row-major."""
        return self.contiguous and self.dtype.char in "fd"

    def as_rows(self, name: str) -> str:
        """The expression for it as a matrix of its last axis, `name` being that for itself."""
        return name if len(self.shape) == 2 else f"{name}.reshape({prod(self.shape[:-1])}, {self.shape[-1]})"


class Lines:
    """Lines of code, and what stands behind names in them."""

    def __init__(self, *lines: str, **names: Any) -> None:
        self.lines = lines
        self.names = names


Chooser = Callable[..., Lines | None]
_choosers: dict[Any, Chooser] = {}


def straight(function: Callable[..., Any]) -> Callable[[Chooser], Chooser]:
    """Decorator: see above."""

    def register(chooser: Chooser) -> Chooser:
        _choosers[function] = chooser
        return chooser

    return register


def chooser_of(function: Any) -> Chooser | None:
    """What was registered for a function."""
    return _choosers.get(function)
