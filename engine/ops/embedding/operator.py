"""embedding: rows of a table by index, and its adjoint. Results are row-major."""

from types import ModuleType
from typing import Any

import numpy as np

from engine.calls.dispatch import apply
from engine.calls.operator import define
from engine.memory.backend import array_module
from engine.ops.embedding import kernels
from engine.ops.index.scattering import combine_at
from engine.ops.shared.fused import flattened, row_major, served
from engine.rules.spec import Spec
from engine.tensor import Tensor


def _rule(input: Spec, weight: Spec, padding_idx: int, scale_grad_by_freq: bool) -> Spec:
    if input.dtype.name not in ("int64", "int32"):
        raise RuntimeError(
            "embedding: Expected tensor for argument 'indices' to have one of the scalar types int64, int32; but got "
            f"{input.dtype}"
        )
    if weight.ndim != 2:
        raise RuntimeError(f"embedding: 'weight' must be 2-D, got shape {list(weight.shape)}")
    return weight.like(shape=(*input.shape, weight.shape[1]))


def _check_range(xp: ModuleType, index: Any, size: int) -> None:
    """Raises IndexError unless every index is in 0 ... size-1."""
    if not index.size or xp is not np:  # a GPU's are not waited for
        return
    # As unsigned numbers negative indices are huge, so one pass checks both ends.
    unsigned = index.view("u8" if index.dtype.itemsize == 8 else "u4")
    if int(unsigned.max()) >= size:
        wrong = int(index[(index < 0) | (index >= size)].reshape(-1)[0])
        raise IndexError(f"embedding: index out of range in self: {wrong}, expected 0..{size - 1}")


def _embedding(xp: ModuleType, input: Any, weight: Any, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    _check_range(xp, input, weight.shape[0])
    return weight.take(input, axis=0)  # 1024 rows of 128 floats: 11 µs, weight[input] 19


EMBEDDING = define(
    "embedding",
    rule=_rule,
    forward=_embedding,
    backward=(
        None,
        lambda g, nd, input, weight_spec, padding_idx, scale_grad_by_freq: nd.embedding_backward(
            g, input, weight_spec.shape[0], padding_idx, scale_grad_by_freq
        ),
    ),
    inputs="input weight",
    attributes="padding_idx scale_grad_by_freq",
)


def _row_factors(xp: ModuleType, index: Any, count: int, padding_idx: int, scale_grad_by_freq: bool, kind: Any) -> Any:
    """What the gradient of every looked-up row is multiplied by: 0 for padding, 1 / (how often its index occurs) if
    asked for.
    """
    factors = xp.ones(index.shape, kind)
    if scale_grad_by_freq:
        factors /= _occurrences(xp, index, count)[index]
    return xp.where(index == padding_idx, 0, factors)


def _occurrences(xp: ModuleType, index: Any, count: int) -> Any:
    if xp is np:
        return np.bincount(index, minlength=count)
    found = xp.zeros(count, np.int64)  # CuPy's bincount looks for the largest index, and waits for it
    combine_at(xp, "add", found, (index,), xp.ones((), np.int64))
    return found


def _embedding_backward(
    xp: ModuleType, gradient: Any, index: Any, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    flat = index.reshape(-1)
    rows = gradient.reshape(-1, gradient.shape[-1])
    if padding_idx >= 0 or scale_grad_by_freq:
        rows = rows * _row_factors(xp, flat, count, padding_idx, scale_grad_by_freq, rows.dtype)[:, None]
    table = xp.zeros((count, gradient.shape[-1]), gradient.dtype)
    combine_at(xp, "add", table, (flat,), rows)
    return table


def _again(g: Any, nd: Any, index: Any, count: int, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    looked_up = nd.embedding(index, g, -1, False)
    if padding_idx < 0 and not scale_grad_by_freq:
        return looked_up
    raw = index._array if nd.records else index
    xp = array_module(index.device) if nd.records else nd.xp
    factors = _row_factors(
        xp,
        raw.reshape(-1),
        count,
        padding_idx,
        scale_grad_by_freq,
        looked_up.dtype.numpy if nd.records else looked_up.dtype,
    )
    factors = factors.reshape((*raw.shape, 1))
    return looked_up * (looked_up.new_tensor(factors) if nd.records else factors)


EMBEDDING_BACKWARD = define(
    "embedding_backward",
    rule=lambda gradient, index, count, padding_idx, scale_grad_by_freq: gradient.like(
        shape=(count, gradient.shape[-1])
    ),
    forward=_embedding_backward,
    backward=(_again, None),
    inputs="gradient index",
    attributes="count padding_idx scale_grad_by_freq",
)


@EMBEDDING_BACKWARD.kernel("cpu")
def _embedding_backward_cpu(
    xp: ModuleType, gradient: Any, index: Any, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    if gradient.dtype.char not in "fd":
        return _embedding_backward(xp, gradient, index, count, padding_idx, scale_grad_by_freq)
    # 1024 rows of 128 floats into 256: 16 µs, np.add.at 420
    rows = (
        np.ascontiguousarray(gradient).reshape(-1, gradient.shape[-1])
        if gradient.size
        else np.empty((0, gradient.shape[-1]), gradient.dtype)
    )
    flat = np.ascontiguousarray(index).reshape(-1).astype(np.int64, copy=False)
    return kernels.embedding_backward(rows, flat, count, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq)


@EMBEDDING.kernel("cuda")
def _embedding_cuda(xp: ModuleType, input: Any, weight: Any, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    if not served(weight):
        return _embedding(xp, input, weight, padding_idx, scale_grad_by_freq)
    from engine.ops.embedding import cuda as fused

    rows = fused.look_up(xp.ascontiguousarray(weight), flattened(xp, input, np.int64))
    return rows.reshape(*input.shape, weight.shape[1])


@EMBEDDING_BACKWARD.kernel("cuda")
def _embedding_backward_cuda(
    xp: ModuleType, gradient: Any, index: Any, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    if not served(gradient):
        return _embedding_backward(xp, gradient, index, count, padding_idx, scale_grad_by_freq)
    from engine.ops.embedding import cuda as fused

    rows = row_major(xp, gradient, gradient.dtype, (index.size, gradient.shape[-1]))
    return fused.add_rows(rows, flattened(xp, index, np.int64), count, padding_idx, scale_grad_by_freq)


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, scale_grad_by_freq: bool = False
) -> Tensor:
    """Rows of `weight` (V, D) at the indices `input` (int64 or int32, any shape): (..., D). The row `padding_idx` gets
    no gradient.

    Raises: IndexError for an index outside the table (a GPU gives NaN for it, as nothing waits there); RuntimeError for
    other dtypes of indices or a table that is not 2-D.
    """
    return apply(
        EMBEDDING, (input, weight), (-1 if padding_idx is None else int(padding_idx), bool(scale_grad_by_freq))
    )


def embedding_backward(
    gradient: Tensor, index: Tensor, count: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Tensor:
    """The adjoint of `embedding`: a table of `count` rows to which the rows of `gradient` are added at `index`."""
    return apply(EMBEDDING_BACKWARD, (gradient, index), (count, padding_idx, scale_grad_by_freq))
