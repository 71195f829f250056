"""Cross-entropy and negative log-likelihood with class indices on the device: grids and blocks of `loss.cu`.

Logits (outer, classes, inner) row-major in a floating point dtype; targets (outer * inner,) int64; class
weights (classes,) in the logits' dtype, or None. Losses are computed and added up in float32 for the half types. A
target that is neither a class nor `ignore_index` gives NaN in its row, as nothing here waits for the device.
"""

from typing import Any

import numpy as np

from engine.kernels.cuda.launch import Source
from engine.kernels.cuda.rows import flat_grid, macros, pointer, shape, variants, width, work_type
from engine.memory import backend

Array = Any

SOURCE = Source(
    "ops/loss/loss.cu",
    [
        "cross_entropy_forward",
        "cross_entropy_columns_forward",
        "cross_entropy_backward",
        "cross_entropy_columns_backward",
        "nll_forward",
        "nll_backward",
        "loss_totals",
    ],
    variants(),
    headers=["rows.cuh", "online.cuh"],
)

_PART = 16_384  # rows whose losses one block adds up


def cross_entropy_forward(
    x: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str, label_smoothing: float
) -> tuple[Array, Array, Array]:
    """(the loss, 0-dim or one a row; log-sum-exp of each row; what "mean" divides by, 0-dim)."""
    losses, weights, log_sums = _vectors(x, 3)
    rows, inner = len(losses), x.shape[2]
    if rows:
        options = _options(x, target, weight, ignore_index)
        results = (np.float64(label_smoothing), losses, weights, log_sums, np.int64(rows))
        if inner == 1:
            elements = width(x.shape[1], x)
            launch = SOURCE.get("cross_entropy_forward", **macros(elements, x))
            launch(*shape(rows, x.shape[1] // elements, 512), (x, *options, *results))
        else:
            launch = SOURCE.get("cross_entropy_columns_forward", **macros(1, x))
            launch(*flat_grid(rows), (x, *options, *results, np.int64(inner)))
    loss, total = _reduced(x, losses, weights, reduction)
    return loss, log_sums, total


def cross_entropy_backward(
    gradient: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    log_sums: Array,
    total: Array | None,
    ignore_index: int,
    label_smoothing: float,
) -> Array:
    """The gradient of the logits from that of each row's loss, or of all rows' (1 element), divided by `total`."""
    out = backend.require_cupy().empty(x.shape, x.dtype)
    if not x.size:
        return out
    rows, inner = len(log_sums), x.shape[2]
    all_weights = weight.sum(dtype=work_type(x)) if weight is not None and label_smoothing else None
    arguments = (
        gradient,
        np.int32(gradient.size == 1),
        pointer(total),
        x,
        *_options(x, target, weight, ignore_index),
        np.float64(label_smoothing),
        log_sums,
        pointer(all_weights),
        out,
        np.int64(rows),
    )
    if inner == 1:
        elements = width(x.shape[1], x)
        launch = SOURCE.get("cross_entropy_backward", **macros(elements, x))
        launch(*shape(rows, x.shape[1] // elements, 512), arguments)
    else:
        launch = SOURCE.get("cross_entropy_columns_backward", **macros(1, x))
        launch(*flat_grid(rows), (*arguments, np.int64(inner)))
    return out


def nll_forward(x: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str) -> Array:
    """The loss: 0-dim, or one a row."""
    losses, weights = _vectors(x, 2)
    _nll(x, target, weight, ignore_index, losses, weights)
    return _reduced(x, losses, weights, reduction)[0]


def nll_backward(
    gradient: Array, x_like: Array, target: Array, weight: Array | None, ignore_index: int, reduction: str
) -> Array:
    """Fills `x_like` with the gradient of the log-probabilities and returns it."""
    rows, inner = x_like.shape[0] * x_like.shape[2], x_like.shape[2]
    if not x_like.size:
        return x_like
    total = None
    if reduction == "mean":
        (weights,) = _vectors(x_like, 1)
        _nll(x_like, target, weight, ignore_index, None, weights)
        total = _reduced(x_like, None, weights, reduction)[1]
    launch = SOURCE.get("nll_backward", **macros(1, x_like))
    launch(
        *flat_grid(x_like.size),
        (
            gradient,
            np.int32(gradient.size == 1),
            pointer(total),
            *_options(x_like, target, weight, ignore_index),
            x_like,
            np.int64(rows),
            np.int64(inner),
        ),
    )
    return x_like


def _nll(
    x: Array, target: Array, weight: Array | None, ignore_index: int, losses: Array | None, weights: Array
) -> None:
    if len(weights):
        options = _options(x, target, weight, ignore_index)
        launch = SOURCE.get("nll_forward", **macros(1, x))
        arguments = (x, *options, pointer(losses), weights, np.int64(len(weights)), np.int64(x.shape[2]))
        launch(*flat_grid(len(weights)), arguments)


def _vectors(x: Array, count: int) -> list[Array]:
    """Uninitialised vectors of one number a row."""
    cupy = backend.require_cupy()
    return [cupy.empty(x.shape[0] * x.shape[2], work_type(x)) for _ in range(count)]


def _options(x: Array, target: Array, weight: Array | None, ignore_index: int) -> tuple[Any, ...]:
    return target, pointer(weight), np.int64(x.shape[1]), np.int64(ignore_index)


def _reduced(x: Array, losses: Array | None, weights: Array, reduction: str) -> tuple[Array, Array]:
    """(the loss in the logits' dtype, the sum of the weights), both on the device."""
    cupy = backend.require_cupy()
    kind = work_type(x)
    if reduction == "none":
        return losses.astype(x.dtype, copy=False), weights  # type: ignore[union-attr]
    launch = SOURCE.get("loss_totals", **macros(1, x))
    while True:
        count = len(weights)
        blocks = max(-(-count // _PART), 1)
        sums = [cupy.empty(blocks, kind) for _ in range(2)]
        result = cupy.empty((), x.dtype) if blocks == 1 else None
        mean = np.int32(reduction == "mean")
        launch(
            (blocks,),
            (1024 if count > 512 else 256,),
            (pointer(losses), weights, np.int64(count), np.int64(_PART), *sums, mean, pointer(result)),
        )
        losses, weights = sums
        if blocks == 1:
            return result, weights.reshape(())
