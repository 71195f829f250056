"""One step of a recurrent network on arrays, as the compiled kernels do it (`engine.ops.rnn.kernels`, `cuda`)."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from engine.ops.rnn import kernels
from engine.ops.shared.windows import compiled

Array = Any


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


def cell_on(xp: ModuleType, array: Array, name: str) -> Callable[..., None]:
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
