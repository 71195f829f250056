"""The derivatives of a recurrent layer over a whole sequence: back through the steps, then one product a weight."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from engine.autograd.api import grad
from engine.calls.derivative import implements
from engine.ops.matmul.gpu import matmul
from engine.ops.rnn.cells import cell_on
from engine.ops.rnn.sequence import Product, by_rows, contiguous, dot, in_order, is_zero
from engine.ops.rnn.steps import STEPS, unrolled

Array = Any


def _lstm_slopes_composed(
    g: Any,
    needs: Sequence[bool],
    input: Any,
    hidden: Any,
    cell: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any,
    bias_hh: Any,
    backwards: bool,
) -> Sequence[Any]:
    inputs = (input, hidden, cell, weight_ih, weight_hh, bias_ih, bias_hh)
    return recorded_slopes("lstm", g, needs, inputs, backwards)


@implements(_lstm_slopes_composed)
def lstm_slopes(
    g: Any,
    nd: Any,
    needs: Sequence[bool],
    input: Any,
    hidden: Any,
    cell: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any,
    bias_hh: Any,
    out: Any,
    gates: Any,
    cells: Any,
    backwards: bool,
) -> Sequence[Any]:
    xp = nd.xp
    of_outputs, last, outputs = contiguous(xp, *g, out[0])
    input, hidden, cell, weight_ih, weight_hh = contiguous(xp, input, hidden, cell, weight_ih, weight_hh)
    later = xp.zeros(hidden.shape, gates.dtype)
    of_cell = xp.zeros_like(later) if last is None else last.copy()
    nothing = xp.zeros_like(later)
    of_gates = xp.empty_like(gates)
    step, order = cell_on(xp, gates, "lstm_cell_backward"), in_order(len(input), backwards)

    def run(rows: slice, multiply: Product) -> None:
        from_later, of_c = later[rows], of_cell[rows]
        for position in range(len(order) - 1, -1, -1):
            t = order[position]
            before = cells[order[position - 1], rows] if position else cell[rows]
            of_output = nothing[rows] if of_outputs is None else of_outputs[t, rows]
            slope = of_gates[t, rows]
            step(of_output, from_later, of_c, gates[t, rows], before, cells[t, rows], slope)
            if position or needs[1]:
                multiply(slope, from_later)

    by_rows(of_gates[0], weight_hh, len(input), run)
    slopes = _weight_slopes(xp, needs[0], input, weight_ih, hidden, outputs, of_gates, of_gates, backwards)
    return slopes[0], later if needs[1] else None, of_cell, *slopes[1:]


def _gru_slopes_composed(
    g: Any,
    needs: Sequence[bool],
    input: Any,
    hidden: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any,
    bias_hh: Any,
    backwards: bool,
) -> Sequence[Any]:
    return recorded_slopes("gru", (g,), needs, (input, hidden, weight_ih, weight_hh, bias_ih, bias_hh), backwards)


@implements(_gru_slopes_composed)
def gru_slopes(
    g: Any,
    nd: Any,
    needs: Sequence[bool],
    input: Any,
    hidden: Any,
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any,
    bias_hh: Any,
    out: Any,
    gates: Any,
    candidates: Any,
    backwards: bool,
) -> Sequence[Any]:
    xp = nd.xp
    of_outputs, outputs = contiguous(xp, g, out)
    input, hidden, weight_ih, weight_hh = contiguous(xp, input, hidden, weight_ih, weight_hh)
    later = xp.zeros(hidden.shape, gates.dtype)
    direct = xp.zeros_like(later)
    of_gates, of_recurrent = xp.empty_like(gates), xp.empty_like(gates)
    step, order = cell_on(xp, gates, "gru_cell_backward"), in_order(len(input), backwards)

    def run(rows: slice, multiply: Product) -> None:
        from_later, past = later[rows], direct[rows]
        for position in range(len(order) - 1, -1, -1):
            t = order[position]
            before = outputs[order[position - 1], rows] if position else hidden[rows]
            given = of_outputs[t, rows], from_later, past, gates[t, rows], candidates[t, rows], before
            slope = of_recurrent[t, rows]
            step(*given, of_gates[t, rows], slope)
            if position or needs[1]:
                multiply(slope, from_later)

    by_rows(of_recurrent[0], weight_hh, len(input), run)
    slopes = _weight_slopes(xp, needs[0], input, weight_ih, hidden, outputs, of_gates, of_recurrent, backwards)
    return slopes[0], later + direct if needs[1] else None, *slopes[1:]


def simple_slopes(
    activation: str,
    g: Any,
    nd: Any,
    needs: Sequence[bool],
    inputs: Sequence[Any],
    out: Any,
    backwards: bool,
) -> Sequence[Any]:
    xp = nd.xp
    of_outputs, outputs, input, hidden, weight_ih, weight_hh = contiguous(xp, g, out, *inputs[:4])
    later = xp.zeros(hidden.shape, outputs.dtype)
    of_sums = 1 - outputs * outputs if activation == "tanh" else (outputs > 0).astype(outputs.dtype)

    def run(rows: slice, multiply: Product) -> None:
        from_later = later[rows]
        for position, t in reversed([*enumerate(in_order(len(input), backwards))]):
            from_later += of_outputs[t, rows]
            slope = of_sums[t, rows]
            slope *= from_later
            if position or needs[1]:
                multiply(slope, from_later)

    by_rows(of_sums[0], weight_hh, len(input), run)
    slopes = _weight_slopes(xp, needs[0], input, weight_ih, hidden, outputs, of_sums, of_sums, backwards)
    return slopes[0], later if needs[1] else None, *slopes[1:]


def _weight_slopes(
    xp: ModuleType,
    needs_input: bool,
    input: Array,
    weight_ih: Array,
    hidden: Array,
    outputs: Array,
    of_gates: Array,
    of_recurrent: Array,
    backwards: bool,
) -> tuple[Array, ...]:
    """Gradients of input, weight_ih, weight_hh, bias_ih and bias_hh from those of the sums under the gates."""
    width = of_gates.shape[2]
    rows = of_gates.reshape(-1, width)
    of_input = dot(rows, weight_ih).reshape(input.shape) if needs_input else None
    of_weight_ih = dot(rows.T, input.reshape(-1, input.shape[2]))
    first, rest, before = (
        (of_recurrent[-1], of_recurrent[:-1], outputs[1:])
        if backwards
        else (of_recurrent[0], of_recurrent[1:], outputs[:-1])
    )
    of_weight_hh = dot(rest.reshape(-1, width).T, before.reshape(-1, hidden.shape[1]))
    if not is_zero(hidden):
        of_weight_hh += matmul(xp, first.T, hidden)
    ones = xp.ones(len(rows), rows.dtype)
    # BLAS sums short rows faster than add.reduce does
    of_bias_ih = matmul(xp, ones, rows)
    same = of_recurrent is of_gates
    of_bias_hh = of_bias_ih.copy() if same else matmul(xp, ones, of_recurrent.reshape(-1, width))
    return of_input, of_weight_ih, of_weight_hh, of_bias_ih, of_bias_hh


def recorded_slopes(
    mode: str, g: Sequence[Any], needs: Sequence[bool], inputs: Sequence[Any], backwards: bool
) -> Sequence[Any]:
    """The derivatives as functions that can be differentiated again: those of the same steps, operator by operator."""
    from engine.ops.shape.combine import stack

    states = 2 if mode == "lstm" else 1
    weight_ih, weight_hh, bias_ih, bias_hh = inputs[1 + states :]
    start = tuple(inputs[1 : 1 + states])
    outputs, state = unrolled(STEPS[mode], inputs[0], start, weight_ih, weight_hh, bias_ih, bias_hh, backwards)
    results = [stack(outputs), *state[1:]]
    pairs = [(result, each) for result, each in zip(results, g, strict=True) if each is not None]
    wanted = [each for each, needed in zip(inputs, needs, strict=True) if needed]
    found = iter(
        grad([result for result, _ in pairs], wanted, [each for _, each in pairs], create_graph=True, allow_unused=True)
    )
    return [next(found) if needed else None for needed in needs]
