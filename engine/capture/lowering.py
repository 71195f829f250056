"""Writes the lines out that stand for a function in a replay (`engine.calls.straight`), with buffers put in."""

import re
from typing import Any, Protocol

import numpy as np

from engine.calls.straight import Layout, Lines, chooser_of
from engine.capture.recorder import Constant, External, Slot


class Writing(Protocol):
    """What of `engine.capture.code.Writer` is used here."""

    def layout(self, atom: Any) -> Layout | None: ...
    def expression(self, atom: Any) -> str: ...
    def name(self, value: Any) -> str: ...
    def line(self, text: str) -> None: ...
    def memory(self, slot: Slot) -> str | None: ...


def lower(writer: Writing, function: Any, arguments: tuple[Any, ...], result: Slot) -> bool:
    """Writes the call of a kernel out if lines stand for it; says whether they do."""
    if type(function) is np.ufunc:
        return _ufunc(writer, function, arguments, result)
    chooser, made = chooser_of(function), writer.layout(result)
    if chooser is None or made is None or not made.fresh:
        return False
    values = [each.value if isinstance(each, Constant) else writer.layout(each) for each in arguments]
    lines = chooser(made, *values)
    if lines is None:
        return False
    _write(writer, lines, made, arguments, result)
    return True


def _ufunc(writer: Writing, function: np.ufunc, arguments: tuple[Any, ...], result: Slot) -> bool:
    memory = writer.memory(result)
    if memory is None:
        return False
    given = [*map(writer.expression, arguments), memory]
    writer.line(f"t{result.number} = {writer.name(function)}({', '.join(given)})")
    return True


_MARK = re.compile(r"\{(\w+)(\.T)?\}")


def _write(writer: Writing, lines: Lines, made: Layout, arguments: tuple[Any, ...], result: Slot) -> None:
    memory = writer.memory(result)

    def filled(mark: re.Match[str]) -> str:
        word, turned = mark.groups()
        if word == "out":
            return f"t{result.number}"
        if word == "into":
            return "" if memory is None else f", {memory}"
        if word == "memory":
            return memory or f"empty({made.shape!r}, {writer.name(made.dtype)})"
        if word in lines.names:
            return writer.name(lines.names[word])
        argument = arguments[int(word)]
        if turned and isinstance(argument, External):
            return writer.name(argument.array.T)
        return writer.expression(argument) + (turned or "")

    for line in lines.lines:
        writer.line(_MARK.sub(filled, line))
