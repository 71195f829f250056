"""A layer of an LSTM, GRU or Elman network over a whole sequence as one operator.

The input's part of all steps is one matrix product; what remains a step is the product with the previous hidden state
and one visit of the gates (engine.ops.rnn.kernels on the CPU). The weights' gradients are products over all steps at
once. Composed of operators a step, an LSTM (64 steps, batch 32, hidden 128) took 36 ms a training step, this one 5.

Shapes, with G gates: input (T, N, I), states (N, H), weight_ih (G H, I), weight_hh (G H, H), biases (G H,) or None;
outputs (T, N, H), and the last cell state (N, H) of an LSTM. Source: torch.nn.LSTM, GRU, RNN.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from engine.autograd.api import grad
from engine.calls.derivative import implements
from engine.calls.dispatch import apply
from engine.calls.listening import heard
from engine.calls.operator import define
from engine.memory import backend
from engine.ops.matmul import gpu as matmul_cuda
from engine.ops.matmul.addmm import linear
from engine.ops.matmul.gpu import matmul
from engine.ops.matmul.kernels import product
from engine.ops.pointwise import rows as pointwise
from engine.ops.rnn import kernels
from engine.ops.shared.operands import in_single_precision, optional, require_real
from engine.ops.shared.windows import compiled
from engine.ops.views.parts import chunk, unbind
from engine.rules.spec import Spec
from engine.tensor import Tensor

Array = Any
State = tuple[Tensor, ...]  # (h,) or (h, c)
# step(x Wᵀ + b of the input, state, weight_hh, bias_hh) -> new state
Step = Callable[[Tensor, State, Tensor, Tensor | None], State]

sigmoid, tanh, relu = (pointwise.FUNCTIONS[name] for name in ("sigmoid", "tanh", "relu"))


# --- one step, composed of operators: cells, projected LSTMs and derivatives of derivatives ---------------------------


def simple_step(activation: Callable[[Tensor], Tensor]) -> Step:
    """h' = activation(x' + W h + b). Elman (1990)."""

    def step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        return (activation(projected + linear(state[0], weight, bias)),)

    return step


@heard
def lstm_step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    """c' = f c + i g, h' = o tanh(c'), gates in the order i, f, g, o. Hochreiter and Schmidhuber (1997)."""
    h, c = state
    i, f, g, o = chunk(projected + linear(h, weight, bias), 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@heard
def gru_step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    """h' = (1 - z) n + z h with n = tanh(x_n + r (W h + b)), gates in the order r, z, n. Cho et al. (2014)."""
    (h,) = state
    x_r, x_z, x_n = chunk(projected, 3, -1)
    h_r, h_z, h_n = chunk(linear(h, weight, bias), 3, -1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = tanh(x_n + r * h_n)
    return (n + z * (h - n),)


STEPS: dict[str, Step] = {
    "lstm": lstm_step,
    "gru": gru_step,
    "rnn_tanh": simple_step(tanh),
    "rnn_relu": simple_step(relu),
}


def unrolled(
    step: Step,
    input: Tensor,
    state: State,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    backwards: bool,
) -> tuple[list[Tensor], State]:
    """The hidden states (N, H) in the order of the input's steps, and the last state, operator by operator."""
    steps = list(unbind(linear(input, weight_ih, bias_ih), 0))
    outputs = []
    for projected in reversed(steps) if backwards else steps:
        state = step(projected, state, weight_hh, bias_hh)
        outputs.append(state[0])
    return outputs[::-1] if backwards else outputs, state


# --- one step on arrays, as the compiled kernels do it ----------------------------------------------------------------


def _logistic(xp: ModuleType, x: Array) -> Array:
    return xp.tanh(x * 0.5) * 0.5 + 0.5


def lstm_cell(
    xp: ModuleType, gates: Array, recurrent: Array, bias: Array, cell: Array, new_cell: Array, hidden: Array
) -> None:
    """See `engine.ops.rnn.kernels.lstm_cell`."""
    size = cell.shape[1]
    gates += recurrent + bias
    candidate = xp.tanh(gates[:, 2 * size : 3 * size])
    gates[...] = _logistic(xp, gates)
    gates[:, 2 * size : 3 * size] = candidate
    i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
    new_cell[...] = f * cell + i * g
    hidden[...] = o * xp.tanh(new_cell)


def lstm_cell_backward(
    xp: ModuleType,
    from_output: Array,
    from_later: Array,
    of_cell: Array,
    gates: Array,
    cell: Array,
    new_cell: Array,
    of_gates: Array,
) -> None:
    """See `engine.ops.rnn.kernels.lstm_cell_backward`."""
    size = cell.shape[1]
    i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
    of_hidden = from_output + from_later
    t = xp.tanh(new_cell)
    of_c = of_cell + of_hidden * o * (1 - t * t)
    parts = (of_c * g * i * (1 - i), of_c * cell * f * (1 - f), of_c * i * (1 - g * g), of_hidden * t * o * (1 - o))
    for k, part in enumerate(parts):
        of_gates[:, k * size : (k + 1) * size] = part
    of_cell[...] = of_c * f


def gru_cell(
    xp: ModuleType, gates: Array, recurrent: Array, bias: Array, hidden: Array, candidate: Array, new_hidden: Array
) -> None:
    """See `engine.ops.rnn.kernels.gru_cell`."""
    size = hidden.shape[1]
    recurrent = recurrent + bias
    gates[:, : 2 * size] = _logistic(xp, gates[:, : 2 * size] + recurrent[:, : 2 * size])
    candidate[...] = recurrent[:, 2 * size :]
    r, z = gates[:, :size], gates[:, size : 2 * size]
    n = gates[:, 2 * size :] = xp.tanh(gates[:, 2 * size :] + r * candidate)
    new_hidden[...] = n + z * (hidden - n)


def gru_cell_backward(
    xp: ModuleType,
    from_output: Array,
    from_later: Array,
    direct: Array,
    gates: Array,
    candidate: Array,
    hidden: Array,
    of_gates: Array,
    of_recurrent: Array,
) -> None:
    """See `engine.ops.rnn.kernels.gru_cell_backward`."""
    size = hidden.shape[1]
    r, z, n = (gates[:, k * size : (k + 1) * size] for k in range(3))
    of_hidden = from_output + from_later + direct
    of_new = of_hidden * (1 - z) * (1 - n * n)
    of_gates[:, :size] = of_new * candidate * r * (1 - r)
    of_gates[:, size : 2 * size] = of_hidden * (hidden - n) * z * (1 - z)
    of_gates[:, 2 * size :] = of_new
    of_recurrent[:, : 2 * size] = of_gates[:, : 2 * size]
    of_recurrent[:, 2 * size :] = of_new * r
    direct[...] = of_hidden * z


def _cell(xp: ModuleType, array: Array, name: str) -> Callable[..., None]:
    """The compiled kernel of that name where it serves, else the array formulation above."""
    if compiled(xp, array):
        function: Callable[..., None] = getattr(kernels, name)
        return function
    if xp is not np:
        from engine.ops.rnn import cuda as rnn

        fused: Callable[..., None] = getattr(rnn, name)
        return fused
    plain = globals()[name]
    return lambda *arrays: plain(xp, *arrays)


# --- a whole sequence -------------------------------------------------------------------------------------------------


def _input_sums(xp: ModuleType, input: Array, weight: Array, bias: Array) -> Array:
    """The input's part (T, N, G H) of what the gates are functions of."""
    steps, batch, width = input.shape
    sums = _dot(input.reshape(steps * batch, width), weight.T).reshape(steps, batch, weight.shape[0])
    if bias is not None:
        sums += bias
    return sums


def _dot(a: Array, b: Array, out: Array = None) -> Array:
    """a @ b for matrices, by the compiled product where it is faster than BLAS."""
    if a.__class__ is not np.ndarray:
        xp = backend.require_cupy()
        if out is None:
            return matmul_cuda.product(xp, a, b)
        matmul_cuda.write(xp, a, b, out)
        return out
    if product.serves(a, b):
        return product.multiply(a, b, out)
    return a.dot(b, out)


def _products(left: Array, right: Array, steps: int) -> Callable[[Array, Array], Any]:
    """A function that writes a @ right to its second argument, for `steps` matrices a like `left`."""
    if left.__class__ is np.ndarray and steps > 1 and product.serves(left, right):
        return product.Packed(right, len(left)).multiply
    return lambda a, out: _dot(a, right, out)


def _order(steps: int, backwards: bool) -> list[int]:
    return list(range(steps - 1, -1, -1) if backwards else range(steps))


def _contiguous(xp: ModuleType, *arrays: Array) -> list[Array]:
    return [None if array is None else xp.ascontiguousarray(in_single_precision(array)) for array in arrays]


def _lstm(
    xp: ModuleType,
    input: Array,
    hidden: Array,
    cell: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array,
    bias_hh: Array,
    backwards: bool,
) -> tuple[Array, ...]:
    kind = input.dtype
    arrays = (input, hidden, cell, weight_ih, weight_hh.T, bias_ih, bias_hh)
    input, hidden, cell, weight_ih, turned, bias_ih, bias_hh = _contiguous(xp, *arrays)
    gates = _input_sums(xp, input, weight_ih, None)
    bias = xp.zeros(gates.shape[2], gates.dtype) if bias_hh is None else bias_ih + bias_hh
    recurrent = xp.empty(gates.shape[1:], gates.dtype)
    cells = xp.empty((len(input), *hidden.shape), gates.dtype)
    outputs = xp.empty_like(cells)
    step, multiply = _cell(xp, gates, "lstm_cell"), _products(hidden, turned, len(input))
    for t in _order(len(input), backwards):
        multiply(hidden, recurrent)
        step(gates[t], recurrent, bias, cell, cells[t], outputs[t])
        hidden, cell = outputs[t], cells[t]
    return outputs.astype(kind, copy=False), cell.astype(kind), gates, cells


def _gru(
    xp: ModuleType,
    input: Array,
    hidden: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array,
    bias_hh: Array,
    backwards: bool,
) -> tuple[Array, ...]:
    kind = input.dtype
    arrays = (input, hidden, weight_ih, weight_hh.T, bias_ih, bias_hh)
    input, hidden, weight_ih, turned, bias_ih, bias_hh = _contiguous(xp, *arrays)
    gates = _input_sums(xp, input, weight_ih, bias_ih)
    bias = xp.zeros(gates.shape[2], gates.dtype) if bias_hh is None else bias_hh
    recurrent = xp.empty(gates.shape[1:], gates.dtype)
    candidates = xp.empty((len(input), *hidden.shape), gates.dtype)
    outputs = xp.empty_like(candidates)
    step, multiply = _cell(xp, gates, "gru_cell"), _products(hidden, turned, len(input))
    for t in _order(len(input), backwards):
        multiply(hidden, recurrent)
        step(gates[t], recurrent, bias, hidden, candidates[t], outputs[t])
        hidden = outputs[t]
    return outputs.astype(kind, copy=False), gates, candidates


def _simple(
    activation: str,
    xp: ModuleType,
    input: Array,
    hidden: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias_ih: Array,
    bias_hh: Array,
    backwards: bool,
) -> Array:
    kind = input.dtype
    arrays = (input, hidden, weight_ih, weight_hh.T, bias_ih, bias_hh)
    input, hidden, weight_ih, turned, bias_ih, bias_hh = _contiguous(xp, *arrays)
    outputs = _input_sums(xp, input, weight_ih, bias_ih)
    recurrent = xp.empty(outputs.shape[1:], outputs.dtype)
    multiply = _products(hidden, turned, len(input))
    for t in _order(len(input), backwards):
        multiply(hidden, recurrent)
        if bias_hh is not None:
            recurrent += bias_hh
        hidden = outputs[t]
        hidden += recurrent
        if activation == "tanh":
            xp.tanh(hidden, out=hidden)
        else:
            xp.maximum(hidden, 0, out=hidden)
    return outputs.astype(kind, copy=False)


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
    return _recorded_slopes("lstm", g, needs, inputs, backwards)


@implements(_lstm_slopes_composed)
def _lstm_slopes(
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
    of_outputs, last, outputs = _contiguous(xp, *g, out[0])
    input, hidden, cell, weight_ih, weight_hh = _contiguous(xp, input, hidden, cell, weight_ih, weight_hh)
    later = xp.zeros(hidden.shape, gates.dtype)
    of_cell = xp.zeros_like(later) if last is None else last.copy()
    nothing = xp.zeros_like(later)
    of_gates = xp.empty_like(gates)
    step, multiply = _cell(xp, gates, "lstm_cell_backward"), _products(of_gates[0], weight_hh, len(input))
    order = _order(len(input), backwards)
    for position in range(len(order) - 1, -1, -1):
        t = order[position]
        before = cells[order[position - 1]] if position else cell
        step(nothing if of_outputs is None else of_outputs[t], later, of_cell, gates[t], before, cells[t], of_gates[t])
        multiply(of_gates[t], later)
    slopes = _weight_slopes(xp, needs[0], input, weight_ih, hidden, outputs, of_gates, of_gates, backwards)
    return slopes[0], later, of_cell, *slopes[1:]


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
    return _recorded_slopes("gru", (g,), needs, (input, hidden, weight_ih, weight_hh, bias_ih, bias_hh), backwards)


@implements(_gru_slopes_composed)
def _gru_slopes(
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
    of_outputs, outputs = _contiguous(xp, g, out)
    input, hidden, weight_ih, weight_hh = _contiguous(xp, input, hidden, weight_ih, weight_hh)
    later = xp.zeros(hidden.shape, gates.dtype)
    direct = xp.zeros_like(later)
    of_gates, of_recurrent = xp.empty_like(gates), xp.empty_like(gates)
    step, multiply = _cell(xp, gates, "gru_cell_backward"), _products(of_recurrent[0], weight_hh, len(input))
    order = _order(len(input), backwards)
    for position in range(len(order) - 1, -1, -1):
        t = order[position]
        before = outputs[order[position - 1]] if position else hidden
        step(of_outputs[t], later, direct, gates[t], candidates[t], before, of_gates[t], of_recurrent[t])
        multiply(of_recurrent[t], later)
    slopes = _weight_slopes(xp, needs[0], input, weight_ih, hidden, outputs, of_gates, of_recurrent, backwards)
    return slopes[0], later + direct, *slopes[1:]


def _simple_slopes(
    activation: str,
    g: Any,
    nd: Any,
    needs: Sequence[bool],
    inputs: Sequence[Any],
    out: Any,
    backwards: bool,
) -> Sequence[Any]:
    xp = nd.xp
    of_outputs, outputs, input, hidden, weight_ih, weight_hh = _contiguous(xp, g, out, *inputs[:4])
    later = xp.zeros(hidden.shape, outputs.dtype)
    of_sums = 1 - outputs * outputs if activation == "tanh" else (outputs > 0).astype(outputs.dtype)
    multiply = _products(of_sums[0], weight_hh, len(input))
    for t in reversed(_order(len(input), backwards)):
        later += of_outputs[t]
        of_sums[t] *= later
        multiply(of_sums[t], later)
    slopes = _weight_slopes(xp, needs[0], input, weight_ih, hidden, outputs, of_sums, of_sums, backwards)
    return slopes[0], later, *slopes[1:]


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
    of_input = _dot(rows, weight_ih).reshape(input.shape) if needs_input else None
    of_weight_ih = _dot(rows.T, input.reshape(-1, input.shape[2]))
    first, rest, before = (
        (of_recurrent[-1], of_recurrent[:-1], outputs[1:])
        if backwards
        else (of_recurrent[0], of_recurrent[1:], outputs[:-1])
    )
    of_weight_hh = _dot(rest.reshape(-1, width).T, before.reshape(-1, hidden.shape[1]))
    of_weight_hh += matmul(xp, first.T, hidden)
    ones = xp.ones(len(rows), rows.dtype)
    # BLAS sums short rows faster than add.reduce does
    sums = matmul(xp, ones, rows), matmul(xp, ones, of_recurrent.reshape(-1, width))
    return of_input, of_weight_ih, of_weight_hh, *sums


def _recorded_slopes(
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


# --- definitions ------------------------------------------------------------------------------------------------------


def _rule(mode: str, input: Spec, hidden: Spec, *others: Any) -> Any:
    require_real(mode, input)
    specs = [spec for spec in (hidden, *others[:-1]) if spec is not None]
    if any(spec.dtype is not input.dtype for spec in specs):
        listed = ", ".join(str(spec.dtype) for spec in (input, *specs))
        raise ValueError(f"{mode}: expected input, states and parameters of one dtype, but got {listed}")
    if not input.shape[0]:
        raise RuntimeError(f"{mode}: Expected sequence length to be larger than 0 in RNN")
    outputs = input.like(shape=(input.shape[0], *hidden.shape))
    return (outputs, input.like(shape=hidden.shape)) if mode == "lstm" else outputs


_PARAMETERS = "weight_ih weight_hh bias_ih bias_hh"


def _rule_of(mode: str) -> Callable[..., Any]:
    return lambda *arguments: _rule(mode, *arguments)


def _simple_of(activation: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forward(*arguments: Any) -> Any:
        return _simple(activation, *arguments)

    def composed(
        g: Any,
        needs: Any,
        input: Any,
        hidden: Any,
        weight_ih: Any,
        weight_hh: Any,
        bias_ih: Any,
        bias_hh: Any,
        backwards: bool,
    ) -> Any:
        inputs = (input, hidden, weight_ih, weight_hh, bias_ih, bias_hh)
        return _recorded_slopes(f"rnn_{activation}", (g,), needs, inputs, backwards)

    @implements(composed)
    def backward(
        g: Any,
        nd: Any,
        needs: Any,
        input: Any,
        hidden: Any,
        weight_ih: Any,
        weight_hh: Any,
        bias_ih: Any,
        bias_hh: Any,
        out: Any,
        backwards: bool,
    ) -> Any:
        inputs = (input, hidden, weight_ih, weight_hh, bias_ih, bias_hh)
        return _simple_slopes(activation, g, nd, needs, inputs, out, backwards)

    return forward, backward


OPERATORS_OF = {
    "lstm": define(
        "lstm",
        rule=_rule_of("lstm"),
        forward=_lstm,
        backward=_lstm_slopes,
        inputs=f"input hidden cell {_PARAMETERS}",
        attributes="backwards",
        outputs=2,
        residuals="gates cells",
    ),
    "gru": define(
        "gru",
        rule=_rule_of("gru"),
        forward=_gru,
        backward=_gru_slopes,
        inputs=f"input hidden {_PARAMETERS}",
        attributes="backwards",
        residuals="gates candidates",
    ),
}
for _activation in ("tanh", "relu"):
    _forward, _backward = _simple_of(_activation)
    OPERATORS_OF[f"rnn_{_activation}"] = define(
        f"rnn_{_activation}",
        rule=_rule_of(f"rnn_{_activation}"),
        forward=_forward,
        backward=_backward,
        inputs=f"input hidden {_PARAMETERS}",
        attributes="backwards",
    )


@heard
def recurrence(
    mode: str,
    input: Tensor,
    state: State,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None,
    bias_hh: Tensor | None,
    backwards: bool = False,
) -> tuple[Tensor, State]:
    """Hidden states (T, N, H) at every step, and the last state, of the mode "lstm", "gru", "rnn_tanh" or "rnn_relu".

    `backwards` goes from the last step of the input to the first. Raises: RuntimeError for an empty sequence or
    different dtypes.
    """
    operands = (input, *state, weight_ih, weight_hh, optional(bias_ih), optional(bias_hh))
    result = apply(OPERATORS_OF[mode], operands, (backwards,))
    outputs, *cell = result if mode == "lstm" else (result,)
    return outputs, (outputs[0 if backwards else -1], *cell)
