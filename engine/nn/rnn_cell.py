"""Recurrent cells: one step of an RNN, LSTM or GRU."""

from typing import Any, ClassVar

import engine
import engine.nn.functional as F
from engine.nn.module import Module
from engine.nn.parameter import Parameter
from engine.nn.rnn import reset, simple
from engine.ops.rnn.steps import State, Step, gru_step, lstm_step
from engine.tensor import Tensor


class RNNCellBase(Module):
    """One step of a recurrence: input (N, input_size) or (input_size), states (N, hidden_size) or (hidden_size)."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = self.gates * hidden_size
        self.weight_ih = Parameter(engine.empty((rows, input_size), device=device, dtype=dtype))
        self.weight_hh = Parameter(engine.empty((rows, hidden_size), device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(engine.empty(rows, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset(self, self.hidden_size)

    def _run(self, input: Tensor, state: State | None, step: Step) -> State:
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for each in state or ():
            if each.dim() not in (1, 2):
                raise ValueError(f"{name}: Expected hidden to be 1D or 2D, got {each.dim()}D instead")
        batched = input.dim() == 2
        x = input if batched else input.unsqueeze(0)
        if x.shape[1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {x.shape[1]} expected {self.input_size}")
        if state is None:
            state = tuple(x.new_zeros(x.shape[0], self.hidden_size) for _ in range(self.states))
        elif not batched:
            state = tuple(each.unsqueeze(0) for each in state)
        new = step(F.linear(x, self.weight_ih, self.bias_ih), state, self.weight_hh, self.bias_hh)
        return new if batched else tuple(each.squeeze(0) for each in new)

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if not self.bias:
            text += f", bias={self.bias}"
        nonlinearity = getattr(self, "nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"


class RNNCell(RNNCellBase):
    """h' = tanh(W x + b + U h + d), or ReLU in place of tanh."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._run(input, None if hx is None else (hx,), simple(self.nonlinearity))[0]


class LSTMCell(RNNCellBase):
    """One step of an LSTM: returns (h', c')."""

    gates = 4
    states = 2

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._run(input, hx, lstm_step)
        return h, c


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    gates = 3

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._run(input, None if hx is None else (hx,), gru_step)[0]
