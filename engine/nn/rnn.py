"""Recurrent layers: RNN, LSTM, GRU. What they compute is in engine.ops.rnn.operator."""

import math
import numbers
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import engine
import engine.nn.functional as F
from engine.nn import init
from engine.nn.module import Module
from engine.nn.packed import over_packed
from engine.nn.parameter import Parameter
from engine.nn.utils.rnn import PackedSequence
from engine.ops.rnn.operator import recurrence
from engine.ops.rnn.steps import STEPS, State, Step, unrolled
from engine.tensor import Tensor


def simple(nonlinearity: str) -> Step:
    """The step of an Elman network. Raises ValueError for another nonlinearity than "tanh" and "relu"."""
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
    return STEPS[f"rnn_{nonlinearity}"]


def reset(layer: Module, hidden_size: int) -> None:
    """U(-x, x) with x = 1 / sqrt(hidden_size), for all weights of a recurrent layer."""
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0
    for weight in layer.parameters():
        init.uniform_(weight, -bound, bound)


class RNNBase(Module):
    """Stacked, optionally bidirectional recurrence.

    Shapes: input (L, N, input_size), N first with `batch_first`, or (L, input_size); states (layers · directions, N,
    hidden). Returns the outputs of the last layer at every step, directions side by side, and the final states.
    Parameters: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, and so on per layer, `_reverse` for the second
    direction, from U(-1/sqrt(hidden), 1/sqrt(hidden)).
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        _check_arguments(input_size, hidden_size, num_layers, bias, batch_first, dropout, proj_size)
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        self.mode = type(self).__name__
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.proj_size = proj_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self._suffixes = [
            [f"_l{layer}{reverse}" for reverse in (("", "_reverse") if bidirectional else ("",))]
            for layer in range(num_layers)
        ]
        rows, out_size = self.gates * hidden_size, proj_size or hidden_size
        for layer, suffixes in enumerate(self._suffixes):
            columns = input_size if layer == 0 else out_size * len(suffixes)
            shapes = {"weight_ih": (rows, columns), "weight_hh": (rows, out_size)}
            if bias:
                shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}  # type: ignore[dict-item]
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden_size)
            for suffix in suffixes:
                for name, shape in shapes.items():
                    self.register_parameter(name + suffix, Parameter(engine.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset(self, self.hidden_size)

    def flatten_parameters(self) -> None:
        """Nothing to do here: PyTorch packs the weights for cuDNN."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        return [
            [self._parameters[kind + suffix] for kind in kinds if kind + suffix in self._parameters]
            for suffixes in self._suffixes
            for suffix in suffixes
        ]

    def _run(self, input: Any, initial: State | None) -> tuple[Any, State]:
        """(outputs, final states): everything but the form in which states come and go."""
        if isinstance(input, PackedSequence):
            return self._run_packed(input, initial)
        if not isinstance(input, Tensor):
            raise TypeError(f"{self.mode}: expected a Tensor or PackedSequence, got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise ValueError(f"{self.mode}: Expected input to be 2D or 3D, got {input.dim()}D tensor instead")
        batched = input.dim() == 3
        initial = self._checked_initial(input, initial, batched)
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        if x.shape[2] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[2]}"
            )
        x, states = self._run_layers(self._run_direction, x, self._initial(x, x.shape[1], initial))
        if not batched:
            return x.squeeze(1), tuple(state.squeeze(1) for state in states)
        return (x.transpose(0, 1) if self.batch_first else x), states

    def _run_packed(self, input: PackedSequence, initial: State | None) -> tuple[PackedSequence, State]:
        """The same over packed sequences: outputs are packed, states in the order before packing."""
        data, batch_sizes, order, back = input
        if data.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {data.shape[-1]}"
            )
        batch = int(batch_sizes[0])
        if initial is not None:
            initial = self._fitting(initial, batch)
            initial = initial if order is None else tuple(state.index_select(1, order) for state in initial)

        def run(x: Tensor, state: State, suffix: str) -> tuple[Tensor, State]:
            return over_packed(
                lambda steps, state: self._run_direction(steps, state, suffix),
                PackedSequence(x, batch_sizes),
                state,
                suffix.endswith("_reverse"),
            )

        data, states = self._run_layers(run, data, self._initial(data, batch, initial))
        if back is not None:
            states = tuple(state.index_select(1, back) for state in states)
        return PackedSequence(data, batch_sizes, order, back), states

    def _run_layers(
        self, run: Callable[[Tensor, State, str], tuple[Tensor, State]], x: Tensor, start: State
    ) -> tuple[Tensor, State]:
        """Outputs of the last layer and final states, `run` being one direction of one layer."""
        finals: list[State] = []
        for layer, suffixes in enumerate(self._suffixes):
            outputs = []
            for suffix in suffixes:
                own = tuple(state[len(finals)] for state in start)
                sequence, final = run(x, own, suffix)
                outputs.append(sequence)
                finals.append(final)
            x = outputs[0] if len(outputs) == 1 else engine.cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(engine.stack([final[kind] for final in finals]) for kind in range(self.states))

    def _run_direction(self, x: Tensor, state: State, suffix: str) -> tuple[Tensor, State]:
        weights = self._parameters
        weight_ih, weight_hh = weights["weight_ih" + suffix], weights["weight_hh" + suffix]
        biases = weights.get("bias_ih" + suffix), weights.get("bias_hh" + suffix)
        projection = weights.get("weight_hr" + suffix)
        backwards = suffix.endswith("_reverse")
        if projection is None:
            return recurrence(self.mode.lower(), x, state, weight_ih, weight_hh, *biases, backwards)

        def step(projected: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
            hidden, cell = STEPS["lstm"](projected, state, weight, bias)
            return F.linear(hidden, projection), cell

        outputs, state = unrolled(step, x, state, weight_ih, weight_hh, *biases, backwards)
        return engine.stack(outputs), state

    def _sizes(self, batch: int) -> list[tuple[int, int, int]]:
        """The shapes of the states."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [(count, batch, self.proj_size or self.hidden_size), (count, batch, self.hidden_size)]
        return sizes[: self.states]

    def _initial(self, x: Tensor, batch: int, given: State | None) -> State:
        if given is None:
            return tuple(x.new_zeros(size) for size in self._sizes(batch))
        return given

    def _checked_initial(self, input: Tensor, given: State | None, batched: bool) -> State | None:
        """States with a batch axis. Raises RuntimeError if they do not fit."""
        if given is None:
            return None
        if len(given) != self.states or any(not isinstance(state, Tensor) for state in given):
            raise TypeError(f"{self.mode}: expected {self.states} state tensors, got {given!r}")
        for state in given:
            if state.dim() != input.dim():
                form = "batched 3-D" if batched else "unbatched 2-D"
                raise RuntimeError(
                    f"For {form} input, hx should also be {input.dim()}-D but got {state.dim()}-D tensor"
                )
        states = given if batched else tuple(state.unsqueeze(1) for state in given)
        return self._fitting(states, input.shape[0 if self.batch_first else 1] if batched else 1)

    def _fitting(self, states: State, batch: int) -> State:
        """The states. Raises RuntimeError if their shapes are not those for `batch` sequences."""
        for which, state, expected in zip(("hidden[0]", "hidden[1]"), states, self._sizes(batch), strict=False):
            if tuple(state.shape) != expected:
                name = which if self.states > 1 else "hidden"
                raise RuntimeError(f"Expected {name} size {expected}, got {list(state.shape)}")
        return states

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        if self.proj_size:
            text += f", proj_size={self.proj_size}"
        if self.num_layers != 1:
            text += f", num_layers={self.num_layers}"
        if not self.bias:
            text += f", bias={self.bias}"
        if self.batch_first:
            text += f", batch_first={self.batch_first}"
        if self.dropout:
            text += f", dropout={self.dropout}"
        if self.bidirectional:
            text += f", bidirectional={self.bidirectional}"
        return text


def _check_arguments(
    input_size: Any, hidden_size: Any, num_layers: int, bias: Any, batch_first: Any, dropout: Any, proj_size: int
) -> None:
    if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:  # type: ignore[operator]
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element being zeroed"
        )
    for name, flag in (("bias", bias), ("batch_first", batch_first)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} should be of type bool, got: {type(flag).__name__}")
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
        if not isinstance(size, int):
            raise TypeError(f"{name} should be of type int, got: {type(size).__name__}")
        if size <= 0:
            raise ValueError(f"{name} must be greater than zero")
    if num_layers <= 0:
        raise ValueError("num_layers must be greater than zero")
    if proj_size < 0:
        raise ValueError("proj_size should be a positive integer or zero to disable projections")
    if proj_size >= hidden_size:
        raise ValueError("proj_size has to be smaller than hidden_size")


class RNN(RNNBase):
    """h' = tanh(W x + b + U h + d), or ReLU in place of tanh."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        simple(nonlinearity)
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )
        self.nonlinearity = nonlinearity
        self.mode = f"RNN_{nonlinearity.upper()}"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(outputs, final h)."""
        out, (h,) = self._run(input, None if hx is None else (hx,))
        return out, h


class LSTM(RNNBase):
    """Long short-term memory; with `proj_size` h is projected to that size. Hochreiter and Schmidhuber (1997)."""

    gates = 4
    states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype
        )

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(outputs, (final h, final c))."""
        out, (h, c) = self._run(input, None if hx is None else tuple(hx))
        return out, (h, c)


class GRU(RNNBase):
    """Gated recurrent unit. Cho et al. (2014)."""

    gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(outputs, final h)."""
        out, (h,) = self._run(input, None if hx is None else (hx,))
        return out, h
