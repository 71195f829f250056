"""One time step of an LSTM or a GRU between its matrix products, on the device: grids of `rnn.cu`.

Arguments and results are those of `engine.ops.rnn.kernels`: row-major, float32 or float64, written in place.
"""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.kernels.cuda.rows import flat_grid, macros

Array = Any

SOURCE = Source(
    "ops/rnn/rnn.cu",
    ["lstm_cell", "lstm_cell_backward", "gru_cell", "gru_cell_backward"],
    [{"ELEMENT": kind, "WIDTH": "1"} for kind in ("float", "double")],
    headers=["rows.cuh"],
)


def lstm_cell(gates: Array, recurrent: Array, bias: Array, cell: Array, new_cell: Array, hidden: Array) -> None:
    """``new_cell`` = f cell + i g and ``hidden`` = o tanh(new_cell); ``gates`` become the activated ones."""
    _launch("lstm_cell", cell, gates, recurrent, bias, cell, new_cell, hidden)


def lstm_cell_backward(
    from_output: Array,
    from_later: Array,
    of_cell: Array,
    gates: Array,
    cell: Array,
    new_cell: Array,
    of_gates: Array,
) -> None:
    """Writes ``of_gates``, and turns ``of_cell``, the gradient of ``new_cell``, into that of ``cell``."""
    _launch("lstm_cell_backward", cell, from_output, from_later, of_cell, gates, cell, new_cell, of_gates)


def gru_cell(gates: Array, recurrent: Array, bias: Array, hidden: Array, candidate: Array, new_hidden: Array) -> None:
    """``new_hidden`` = n + z (hidden - n); ``gates`` become the activated ones."""
    _launch("gru_cell", hidden, gates, recurrent, bias, hidden, candidate, new_hidden)


def gru_cell_backward(
    from_output: Array,
    from_later: Array,
    direct: Array,
    gates: Array,
    candidate: Array,
    hidden: Array,
    of_gates: Array,
    of_recurrent: Array,
) -> None:
    """Writes the gradients of the input's and the recurrent sums, and ``direct``, what reaches ``hidden`` past them."""
    arrays = (from_output, from_later, direct, gates, candidate, hidden, of_gates, of_recurrent)
    _launch("gru_cell_backward", hidden, *arrays)


def _launch(kernel: str, state: Array, *arrays: Array) -> None:
    if state.size:
        assert all(array.flags.c_contiguous for array in arrays)
        sizes = map(np.int64, state.shape)
        SOURCE.get(kernel, **macros(1, state))(*flat_grid(state.size), (*arrays, *sizes))
