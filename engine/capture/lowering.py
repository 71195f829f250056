"""Writes the lines out that stand for a function in a replay (`engine.calls.straight`), with buffers put in."""

import re
from collections.abc import Sequence
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


def lower(
    writer: Writing, function: Any, arguments: tuple[Any, ...], results: Sequence[Slot | None], several: bool
) -> bool:
    """Writes the call of a kernel out if lines stand for it; says whether they do. `several`: it returns a tuple."""
    (first, *_) = results
    if first is None and not several:
        return False
    if type(function) is np.ufunc:
        return first is not None and _ufunc(writer, function, arguments, first)
    chooser = chooser_of(function)
    if chooser is None:
        return False
    made = tuple(None if result is None else writer.layout(result) for result in results)
    if any(result is not None and each is None for result, each in zip(results, made, strict=True)):
        return False  # no array
    values = [each.value if isinstance(each, Constant) else writer.layout(each) for each in arguments]
    lines = chooser(made if several else made[0], *values)
    if lines is None:
        return False
    _write(writer, lines, made, arguments, results)
    return True


def _ufunc(writer: Writing, function: np.ufunc, arguments: tuple[Any, ...], result: Slot) -> bool:
    memory = writer.memory(result)
    if memory is None:
        return False
    given = [*map(writer.expression, arguments), memory]
    writer.line(f"t{result.number} = {writer.name(function)}({', '.join(given)})")
    return True


_MARK = re.compile(r"\{(\w+)(\.T)?\}")
_OF_RESULT = re.compile(r"(out|into|memory)(\d*)")


def _write(
    writer: Writing,
    lines: Lines,
    made: Sequence[Layout | None],
    arguments: tuple[Any, ...],
    results: Sequence[Slot | None],
) -> None:
    memories: dict[int, str | None] = {}

    def of_result(word: str, number: int) -> str:
        result, layout = results[number], made[number]
        assert result is not None, "lines for a result that is not there"
        assert layout is not None
        if word == "out":
            return f"t{result.number}"
        if number not in memories:
            memories[number] = writer.memory(result)
        memory = memories[number]
        if word == "into":
            return "" if memory is None else f", {memory}"
        return memory or f"empty({layout.shape!r}, {writer.name(layout.dtype)})"

    def filled(mark: re.Match[str]) -> str:
        word, turned = mark.groups()
        asked = _OF_RESULT.fullmatch(word)
        if asked is not None:
            return of_result(asked[1], int(asked[2] or 0))
        if word in lines.names:
            return writer.name(lines.names[word])
        argument = arguments[int(word)]
        if turned and isinstance(argument, External):
            return writer.name(argument.array.T)
        return writer.expression(argument) + (turned or "")

    for line in lines.lines:
        writer.line(_MARK.sub(filled, line))
