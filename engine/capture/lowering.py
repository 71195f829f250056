"""Kernels that a replay calls itself, without the functions around them that look at arrays to choose a kernel: shapes
and layouts are known by then, and so is the choice. Into buffers, where there are some.

Each row does what the function does that it stands for, with the same kernels in the same order. For a small network
(9 linear layers of 16, 8 tanh, batch 8) this and the buffers take 26 of 86 µs away.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from engine.capture.recorder import Constant, External, Layout, Slot
from engine.memory.threads import WORTH
from engine.ops.activation import compiled
from engine.ops.matmul.kernels import bias as linear
from engine.ops.matmul.kernels import product
from engine.ops.matmul.operator import _linear_bias_slope, _linear_input_slope, _linear_of_rows, _linear_weight_slope


class Writing(Protocol):
    """What of `engine.capture.code.Writer` is used here."""

    def layout(self, atom: Any) -> Layout | None: ...
    def expression(self, atom: Any) -> str: ...
    def name(self, value: Any) -> str: ...
    def line(self, text: str) -> None: ...
    def memory(self, slot: Slot) -> str | None: ...


def lower(writer: Writing, function: Any, arguments: tuple[Any, ...], result: Slot) -> bool:
    """Writes the call of a kernel out if there is a row for it; says whether there was."""
    if type(function) is np.ufunc:
        return _ufunc(writer, function, arguments, result)
    if function in compiled.SLOPES:
        return _activation(writer, compiled.SLOPES[function], arguments, result)
    row = _ROWS.get(function)
    return row is not None and row(writer, arguments, result)


def _ufunc(writer: Writing, function: np.ufunc, arguments: tuple[Any, ...], result: Slot) -> bool:
    memory = writer.memory(result)
    if memory is None:
        return False
    given = [*map(writer.expression, arguments), memory]
    writer.line(f"t{result.number} = {writer.name(function)}({', '.join(given)})")
    return True


def _linear_forward(writer: Writing, arguments: tuple[Any, ...], result: Slot) -> bool:
    input, weight, bias = arguments
    made = writer.layout(result)
    if made is None or not made.fresh:
        return False
    transposed = writer.name(weight.array.T) if isinstance(weight, External) else f"{writer.expression(weight)}.T"
    writer.line(f"t{result.number} = {_dot(writer, writer.expression(input), transposed, result)}")
    kernel = writer.name(linear._add_bias[made.dtype.char])
    writer.line(f"{kernel}(t{result.number}, {writer.expression(bias)})")
    return True


def _dot(writer: Writing, left: str, right: str, result: Slot) -> str:
    memory = writer.memory(result)
    return f"{left}.dot({right})" if memory is None else f"{left}.dot({right}, {memory})"


def _linear_input(writer: Writing, arguments: tuple[Any, ...], result: Slot) -> bool:
    g, _, weight, _ = arguments
    if not _is_matrix(writer.layout(g)) or _is_big(writer.layout(g), writer.layout(result)):
        return False
    writer.line(f"t{result.number} = {_dot(writer, writer.expression(g), writer.expression(weight), result)}")
    return True


def _linear_weight(writer: Writing, arguments: tuple[Any, ...], result: Slot) -> bool:
    g, input, weight_spec, into = arguments
    plain = into == Constant(None) and weight_spec.value.contiguous
    if not (plain and _is_matrix(writer.layout(g)) and _is_matrix(writer.layout(input))):
        return False
    if _is_big(writer.layout(g), writer.layout(result)):
        return False
    writer.line(f"t{result.number} = {writer.expression(g)}.T.dot({writer.expression(input)})")
    return True


def _linear_bias(writer: Writing, arguments: tuple[Any, ...], result: Slot) -> bool:
    g = writer.layout(arguments[0])
    if g is None or not _is_matrix(g) or not g.contiguous or g.dtype.char not in "fd":
        return False
    return _kernel(writer, linear._column_sums[g.dtype.char], arguments[:1], result)


def _activation(writer: Writing, name: str, arguments: tuple[Any, ...], result: Slot) -> bool:
    """The derivative of any compiled activation."""
    g, out, made = writer.layout(arguments[0]), writer.layout(arguments[2]), writer.layout(result)
    if g is None or out is None or made is None or g.dtype.char not in "fd" or math.prod(g.shape) >= WORTH:
        return False
    if (g.shape, g.dtype) != (out.shape, out.dtype) or not (g.contiguous and out.contiguous and made.contiguous):
        return False
    if not made.fresh or not all(isinstance(each, Constant) for each in arguments[3:]):
        return False
    kernel, numbers = compiled.slope_kernel(name, tuple(each.value for each in arguments[3:]), g.dtype.char)
    if name == "tanh" and not _is_matrix(g):
        return False
    if name == "tanh":
        return _kernel(writer, kernel, (arguments[0], arguments[2]), result)
    memory = writer.memory(result)
    if memory is None:
        memory = f"empty({made.shape!r}, {writer.name(made.dtype)})"
    writer.line(f"t{result.number} = {memory}")
    given = [f"{writer.expression(each)}.reshape(-1)" for each in (arguments[0], arguments[2], result)]
    writer.line(f"{writer.name(kernel)}({', '.join([*given, *map(repr, numbers)])})")
    return True


def _kernel(writer: Writing, kernel: Any, arguments: tuple[Any, ...], result: Slot) -> bool:
    """A compiled kernel that writes its result into its last argument."""
    made = writer.layout(result)
    if made is None or not made.fresh or not made.contiguous:
        return False
    memory = writer.memory(result)
    if memory is None:
        memory = f"empty({made.shape!r}, {writer.name(made.dtype)})"
    writer.line(f"t{result.number} = {memory}")
    given = ", ".join(map(writer.expression, arguments))
    writer.line(f"{writer.name(kernel)}({given}, t{result.number})")
    return True


def _is_big(factor: Layout | None, result: Layout | None) -> bool:
    """Whether the function chooses its kernel by more than is known here."""
    return factor is None or result is None or math.prod(factor.shape) * result.shape[-1] >= product.least()


def _is_matrix(layout: Layout | None) -> bool:
    return layout is not None and len(layout.shape) == 2


_ROWS: dict[Any, Callable[[Writing, tuple[Any, ...], Slot], bool]] = {
    _linear_of_rows: _linear_forward,
    _linear_input_slope: _linear_input,
    _linear_weight_slope: _linear_weight,
    _linear_bias_slope: _linear_bias,
}
