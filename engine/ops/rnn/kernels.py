"""One time step of an LSTM or a GRU between its matrix products: gates, states and outputs in one visit of memory.

Matrices are (batch, hidden) or (batch, gates * hidden), C-contiguous, float32 or float64. ``gates`` comes with the
input's part of the sums and goes with the activated gates; ``recurrent`` is the product of the previous hidden state
and its weight, ``bias`` (gates * hidden) belongs to it. Orders of gates: LSTM i, f, g, o; GRU r, z, n. Source:
torch.nn.LSTM, torch.nn.GRU.

Batch 32, hidden 128, one thread: an LSTM step 14 us forward and 9 backward; composed of NumPy's passes 120 and 90.
"""

from collections.abc import Callable

import numpy as np

from engine.kernels.elementary import sigmoid, tanh
from engine.kernels.jit import kernel
from engine.kernels.language import Read1, Read2, Write2, real
from engine.sharing import threads

Array = np.ndarray
_PASSES = 16  # over as many elements as a state has: 32 x 128 take 9 to 14 µs


def lstm_cell(gates: Array, recurrent: Array, bias: Array, cell: Array, new_cell: Array, hidden: Array) -> None:
    """``new_cell`` = f cell + i g and ``hidden`` = o tanh(new_cell); both are written."""
    run = _lstm_cell[gates.dtype.char]
    if cell.size * _PASSES < threads.WORTH:
        run(gates, recurrent, bias, cell, new_cell, hidden)
    else:
        _by_rows(lambda part: run(gates[part], recurrent[part], bias, cell[part], new_cell[part], hidden[part]), cell)


def lstm_cell_backward(
    from_output: Array,
    from_later: Array,
    of_cell: Array,
    gates: Array,
    cell: Array,
    new_cell: Array,
    of_gates: Array,
) -> None:
    """Writes the gradient of the sums under the gates, and turns ``of_cell``, that of ``new_cell``, into that of
    ``cell``.

    The gradient of ``hidden`` is ``from_output + from_later``.
    """
    arrays = from_output, from_later, of_cell, gates, cell, new_cell, of_gates
    run = _lstm_cell_backward[gates.dtype.char]
    if cell.size * _PASSES < threads.WORTH:
        run(*arrays)
    else:
        _by_rows(lambda part: run(*(array[part] for array in arrays)), cell)


def gru_cell(gates: Array, recurrent: Array, bias: Array, hidden: Array, candidate: Array, new_hidden: Array) -> None:
    """``new_hidden`` = n + z (hidden - n); ``candidate`` receives the recurrent part of n, which r multiplies."""
    run = _gru_cell[gates.dtype.char]
    if hidden.size * _PASSES < threads.WORTH:
        run(gates, recurrent, bias, hidden, candidate, new_hidden)
    else:
        _by_rows(
            lambda part: run(gates[part], recurrent[part], bias, hidden[part], candidate[part], new_hidden[part]),
            hidden,
        )


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
    """Writes the gradients of the input's and of the recurrent sums, and into ``direct`` what reaches ``hidden`` past
    them.

    The gradient of ``new_hidden`` is ``from_output + from_later + direct``.
    """
    arrays = from_output, from_later, direct, gates, candidate, hidden, of_gates, of_recurrent
    run = _gru_cell_backward[gates.dtype.char]
    if hidden.size * _PASSES < threads.WORTH:
        run(*arrays)
    else:
        _by_rows(lambda part: run(*(array[part] for array in arrays)), hidden)


def _by_rows(run: Callable[[slice], None], state: Array) -> None:
    """Runs a kernel on some rows of the batch on each of several threads."""
    threads.in_pieces(run, len(state), _PASSES * state.size)


@kernel
def _lstm_cell(gates: Write2, recurrent: Read2, bias: Read1, cell: Read2, new_cell: Write2, hidden: Write2) -> None:
    batch, size = cell.shape
    for n in range(batch):
        row_i, row_f, row_g, row_o = (
            gates[n, :size],
            gates[n, size : 2 * size],
            gates[n, 2 * size : 3 * size],
            gates[n, 3 * size :],
        )
        more_i, more_f, more_g, more_o = (
            recurrent[n, :size],
            recurrent[n, size : 2 * size],
            recurrent[n, 2 * size : 3 * size],
            recurrent[n, 3 * size :],
        )
        bias_i, bias_f, bias_g, bias_o = bias[:size], bias[size : 2 * size], bias[2 * size : 3 * size], bias[3 * size :]
        for k in range(size):
            i = sigmoid(row_i[k] + (more_i[k] + bias_i[k]))
            f = sigmoid(row_f[k] + (more_f[k] + bias_f[k]))
            g = tanh(row_g[k] + (more_g[k] + bias_g[k]))
            o = sigmoid(row_o[k] + (more_o[k] + bias_o[k]))
            c = f * cell[n, k] + i * g
            row_i[k] = i
            row_f[k] = f
            row_g[k] = g
            row_o[k] = o
            new_cell[n, k] = c
            hidden[n, k] = o * tanh(c)


@kernel
def _lstm_cell_backward(
    from_output: Read2,
    from_later: Read2,
    of_cell: Write2,
    gates: Read2,
    cell: Read2,
    new_cell: Read2,
    of_gates: Write2,
) -> None:
    batch, size = cell.shape
    one = real(1.0)
    for n in range(batch):
        row_i, row_f, row_g, row_o = (
            gates[n, :size],
            gates[n, size : 2 * size],
            gates[n, 2 * size : 3 * size],
            gates[n, 3 * size :],
        )
        of_i, of_f, of_g, of_o = (
            of_gates[n, :size],
            of_gates[n, size : 2 * size],
            of_gates[n, 2 * size : 3 * size],
            of_gates[n, 3 * size :],
        )
        for k in range(size):
            i, f, g, o = row_i[k], row_f[k], row_g[k], row_o[k]
            of_hidden = from_output[n, k] + from_later[n, k]
            t = tanh(new_cell[n, k])
            of_c = of_cell[n, k] + of_hidden * o * (one - t * t)
            of_o[k] = of_hidden * t * o * (one - o)
            of_i[k] = of_c * g * i * (one - i)
            of_f[k] = of_c * cell[n, k] * f * (one - f)
            of_g[k] = of_c * i * (one - g * g)
            of_cell[n, k] = of_c * f


@kernel
def _gru_cell(
    gates: Write2, recurrent: Read2, bias: Read1, hidden: Read2, candidate: Write2, new_hidden: Write2
) -> None:
    batch, size = hidden.shape
    for n in range(batch):
        row_r, row_z, row_n = gates[n, :size], gates[n, size : 2 * size], gates[n, 2 * size :]
        more_r, more_z, more_n = recurrent[n, :size], recurrent[n, size : 2 * size], recurrent[n, 2 * size :]
        bias_r, bias_z, bias_n = bias[:size], bias[size : 2 * size], bias[2 * size :]
        for k in range(size):
            r = sigmoid(row_r[k] + (more_r[k] + bias_r[k]))
            z = sigmoid(row_z[k] + (more_z[k] + bias_z[k]))
            under = more_n[k] + bias_n[k]
            new = tanh(row_n[k] + r * under)
            row_r[k] = r
            row_z[k] = z
            row_n[k] = new
            candidate[n, k] = under
            new_hidden[n, k] = new + z * (hidden[n, k] - new)


@kernel
def _gru_cell_backward(
    from_output: Read2,
    from_later: Read2,
    direct: Write2,
    gates: Read2,
    candidate: Read2,
    hidden: Read2,
    of_gates: Write2,
    of_recurrent: Write2,
) -> None:
    batch, size = hidden.shape
    one = real(1.0)
    for n in range(batch):
        row_r, row_z, row_n = gates[n, :size], gates[n, size : 2 * size], gates[n, 2 * size :]
        of_r, of_z, of_n = of_gates[n, :size], of_gates[n, size : 2 * size], of_gates[n, 2 * size :]
        to_r, to_z, to_n = of_recurrent[n, :size], of_recurrent[n, size : 2 * size], of_recurrent[n, 2 * size :]
        for k in range(size):
            r, z, new = row_r[k], row_z[k], row_n[k]
            of_hidden = from_output[n, k] + from_later[n, k] + direct[n, k]
            of_new = of_hidden * (one - z) * (one - new * new)
            slope_r = of_new * candidate[n, k] * r * (one - r)
            slope_z = of_hidden * (hidden[n, k] - new) * z * (one - z)
            of_r[k] = slope_r
            of_z[k] = slope_z
            of_n[k] = of_new
            to_r[k] = slope_r
            to_z[k] = slope_z
            to_n[k] = of_new * r
            direct[n, k] = of_hidden * z
