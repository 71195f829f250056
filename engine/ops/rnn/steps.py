"""One step of a recurrent network composed of operators: cells, projected LSTMs and derivatives of derivatives.

Shapes are those of `engine.ops.rnn.operator`.
"""

from collections.abc import Callable

from engine.calls.listening import heard
from engine.ops.matmul.addmm import linear
from engine.ops.pointwise import rows as pointwise
from engine.ops.views.parts import chunk, unbind
from engine.tensor import Tensor

State = tuple[Tensor, ...]  # (h,) or (h, c)
# step(x Wᵀ + b of the input, state, weight_hh, bias_hh) -> new state
Step = Callable[[Tensor, State, Tensor, Tensor | None], State]

sigmoid, tanh, relu = (pointwise.FUNCTIONS[name] for name in ("sigmoid", "tanh", "relu"))


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
