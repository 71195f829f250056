"""A recurrent layer over a whole sequence, on arrays: one product for the input's part of all steps, then step by step.

Shapes are those of `engine.ops.rnn.operator`; the derivatives are in `slopes.py` beside this.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from engine.memory import backend
from engine.ops.matmul import gpu as matmul_cuda
from engine.ops.matmul.kernels import product
from engine.ops.rnn.cells import cell_on
from engine.ops.shared.operands import in_single_precision
from engine.sharing import threads

Array = Any
Product = Callable[[Array, Array], Any]


def input_sums(xp: ModuleType, input: Array, weight: Array, bias: Array) -> Array:
    """The input's part (T, N, G H) of what the gates are functions of."""
    steps, batch, width = input.shape
    sums = dot(input.reshape(steps * batch, width), weight.T).reshape(steps, batch, weight.shape[0])
    if bias is not None:
        sums += bias
    return sums


def dot(a: Array, b: Array, out: Array = None) -> Array:
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


def by_rows(left: Array, right: Array, steps: int, run: Callable[[slice, Product], Any]) -> None:
    """Calls `run` with the batch's rows, and with a function that writes a @ right to its second argument, for `steps`
    matrices a of such rows as `left` has.

    What becomes of a row depends on that row alone, so each of several threads takes some through all steps; not where
    a product is the BLAS's, whose bits depend on how many rows it has.
    """
    if left.__class__ is np.ndarray and steps > 1 and product.serves(left, right):
        packed = product.Packed(right)
        work = steps * left.size * right.shape[1] // threads.PRODUCTS
        pieces = threads.cut(len(left), threads.number_for(work, len(left) // product.LEAST))
        threads.share(lambda rows: run(rows, packed.of_rows(rows.stop - rows.start)), pieces, work)
    else:
        run(slice(0, len(left)), lambda a, out: dot(a, right, out))


def is_zero(hidden: Array) -> bool:
    """Whether the state before the first step is zero, as where none is given: what is multiplied with it is known.
    On a GPU nobody asks, since the host would wait for the answer.
    """
    return hidden.__class__ is np.ndarray and not hidden.any()


def in_order(steps: int, backwards: bool) -> list[int]:
    return list(range(steps - 1, -1, -1) if backwards else range(steps))


def contiguous(xp: ModuleType, *arrays: Array) -> list[Array]:
    return [None if array is None else xp.ascontiguousarray(in_single_precision(array)) for array in arrays]


def lstm(
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
    input, hidden, cell, weight_ih, turned, bias_ih, bias_hh = contiguous(xp, *arrays)
    gates = input_sums(xp, input, weight_ih, None)
    bias = xp.zeros(gates.shape[2], gates.dtype) if bias_hh is None else bias_ih + bias_hh
    recurrent = xp.zeros(gates.shape[1:], gates.dtype)
    cells = xp.empty((len(input), *hidden.shape), gates.dtype)
    outputs = xp.empty_like(cells)
    step, order = cell_on(xp, gates, "lstm_cell"), in_order(len(input), backwards)
    known = order[0] if is_zero(hidden) else None

    def run(rows: slice, multiply: Product) -> None:
        h, c, product = hidden[rows], cell[rows], recurrent[rows]
        for t in order:
            if t != known:
                multiply(h, product)
            step(gates[t, rows], product, bias, c, cells[t, rows], outputs[t, rows])
            h, c = outputs[t, rows], cells[t, rows]

    by_rows(hidden, turned, len(input), run)
    last = cells[order[-1]]
    return outputs.astype(kind, copy=False), last.astype(kind), gates, cells


def gru(
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
    input, hidden, weight_ih, turned, bias_ih, bias_hh = contiguous(xp, *arrays)
    gates = input_sums(xp, input, weight_ih, bias_ih)
    bias = xp.zeros(gates.shape[2], gates.dtype) if bias_hh is None else bias_hh
    recurrent = xp.zeros(gates.shape[1:], gates.dtype)
    candidates = xp.empty((len(input), *hidden.shape), gates.dtype)
    outputs = xp.empty_like(candidates)
    step, order = cell_on(xp, gates, "gru_cell"), in_order(len(input), backwards)
    known = order[0] if is_zero(hidden) else None

    def run(rows: slice, multiply: Product) -> None:
        h, product = hidden[rows], recurrent[rows]
        for t in order:
            if t != known:
                multiply(h, product)
            step(gates[t, rows], product, bias, h, candidates[t, rows], outputs[t, rows])
            h = outputs[t, rows]

    by_rows(hidden, turned, len(input), run)
    return outputs.astype(kind, copy=False), gates, candidates


def simple(
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
    input, hidden, weight_ih, turned, bias_ih, bias_hh = contiguous(xp, *arrays)
    outputs = input_sums(xp, input, weight_ih, bias_ih)
    recurrent = xp.zeros(outputs.shape[1:], outputs.dtype)
    order = in_order(len(input), backwards)
    known = order[0] if is_zero(hidden) else None

    def run(rows: slice, multiply: Product) -> None:
        h, product = hidden[rows], recurrent[rows]
        for t in order:
            if t != known:
                multiply(h, product)
            if bias_hh is not None:
                product += bias_hh
            h = outputs[t, rows]
            h += product
            if activation == "tanh":
                xp.tanh(h, out=h)
            else:
                xp.maximum(h, 0, out=h)

    by_rows(hidden, turned, len(input), run)
    return outputs.astype(kind, copy=False)
