"""Cross-entropy with class indices: forward keeps only the log-sum-exp, backward writes the logits' gradient in a pass.

logits (M, C) C-contiguous float32 or float64; target (M,) int64; class weights (C,) of the logits' dtype, or None.
Source: torch.nn.functional.cross_entropy (class indices, ``weight``, ``ignore_index``, ``label_smoothing``).
"""

import numpy as np

from engine.kernels.elementary import exp
from engine.kernels.jit import kernel
from engine.kernels.language import Read1, Read2, ReadInt64, Write1, Write2, real
from engine.kernels.rows import row_exp_sum, row_max
from engine.sharing.threads import WORTH, in_pieces

Array = np.ndarray
_PASSES = 4  # over memory take as long as one with an exponential an element


def cross_entropy_forward(
    logits: Array, target: Array, weight: Array | None = None, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> tuple[Array, Array, float]:
    """Losses (M,), log-sum-exp (M,), and the sum of the targets' weights: what ``reduction="mean"`` divides by.

    Rows whose target is ``ignore_index`` have loss 0 and no weight. Raises IndexError for a target outside 0..C-1.
    """
    losses, log_sums, total, _ = cross_entropy_sums(logits, target, weight, ignore_index, label_smoothing)
    return losses, log_sums, total


def cross_entropy_sums(
    logits: Array, target: Array, weight: Array | None, ignore_index: int, label_smoothing: float
) -> tuple[Array, Array, float, float]:
    """What :func:`cross_entropy_forward` returns, and the sum of the losses (in float64)."""
    char = logits.dtype.char
    rows, columns = logits.shape
    losses, log_sums = np.empty(rows, logits.dtype), np.empty(rows, logits.dtype)
    weights = _no_weights(char) if weight is None else weight
    arguments = logits, target, weights, ignore_index, label_smoothing, losses, log_sums
    if rows * columns * _PASSES < WORTH:
        bad, total, loss = _cross_entropy_forward[char](*arguments)
    else:
        bad, total, loss = _share_forward(*arguments)
    if bad >= 0:
        raise IndexError(
            f"cross_entropy: Target {target[bad]} is out of bounds: element {bad} of target, expected 0..{columns - 1} "
            f"(logits have {columns} classes) or ignore_index {ignore_index}"
        )
    return losses, log_sums, total, loss


def cross_entropy_backward(
    gradient: Array,
    logits: Array,
    target: Array,
    log_sums: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Array | None = None,
) -> Array:
    """Gradient of the logits (M, C) from the gradient of each row's loss, (M,) or (1,) if it is the same for all.

    ``out`` may be ``logits`` itself.
    """
    char = logits.dtype.char
    out = np.empty_like(logits) if out is None else out
    weights = _no_weights(char) if weight is None else weight
    arguments = gradient, logits, target, weights, log_sums, ignore_index, label_smoothing, out
    if logits.size * _PASSES < WORTH:
        _cross_entropy_backward[char](*arguments)
    else:
        _share_backward(*arguments)
    return out


def _share_forward(
    logits: Array,
    target: Array,
    weights: Array,
    ignore_index: int,
    label_smoothing: float,
    losses: Array,
    log_sums: Array,
) -> tuple[int, float, float]:
    run, bads = _cross_entropy_forward[logits.dtype.char], []

    def compute(part: slice) -> None:
        bad, _, _ = run(
            logits[part], target[part], weights, ignore_index, label_smoothing, losses[part], log_sums[part]
        )
        if bad >= 0:
            bads.append(part.start + bad)

    in_pieces(compute, len(logits), logits.size * _PASSES)
    if bads:
        return min(bads), 0.0, 0.0
    return -1, *_totals[logits.dtype.char](losses, target, weights, ignore_index)


def _share_backward(
    gradient: Array,
    logits: Array,
    target: Array,
    weights: Array,
    log_sums: Array,
    ignore_index: int,
    label_smoothing: float,
    out: Array,
) -> None:
    run = _cross_entropy_backward[logits.dtype.char]

    def compute(part: slice) -> None:
        of_rows = gradient[part] if gradient.size > 1 else gradient
        some = logits[part], target[part], weights, log_sums[part]
        run(of_rows, *some, ignore_index, label_smoothing, out[part])

    in_pieces(compute, len(logits), logits.size * _PASSES)


def _no_weights(char: str) -> Array:
    return np.empty(0, char)


@kernel
def _cross_entropy_forward(
    logits: Read2,
    target: ReadInt64,
    weight: Read1,
    ignore_index: int,
    smoothing: float,
    losses: Write1,
    log_sums: Write1,
) -> tuple[int, float, float]:
    rows, columns = logits.shape
    weighted = weight.size > 0
    hit, spread = real(1.0 - smoothing), real(smoothing / max(columns, 1))
    total_weight, total_loss = 0.0, 0.0
    for row in range(rows):
        t = target[row]
        if t == ignore_index:
            losses[row] = real(0.0)
            log_sums[row] = real(0.0)
            continue
        if t < 0 or t >= columns:
            return row, 0.0, 0.0
        largest = row_max(logits, row)
        log_sum = np.log(row_exp_sum(logits, row, largest))
        log_sums[row] = largest + log_sum
        target_weight = weight[t] if weighted else real(1.0)
        total_weight += target_weight
        loss = target_weight * hit * (log_sum - (logits[row, t] - largest))
        if smoothing != 0.0:
            all_classes = real(0.0)
            for j in range(columns):
                log_probability = (logits[row, j] - largest) - log_sum
                all_classes -= log_probability * weight[j] if weighted else log_probability
            loss += spread * all_classes
        losses[row] = loss
        total_loss += loss
    return -1, total_weight, total_loss


# What the kernel above adds up on the way, in the same order, where it does not see all rows.
@kernel
def _totals(losses: Read1, target: ReadInt64, weight: Read1, ignore_index: int) -> tuple[float, float]:
    total_weight, total_loss = 0.0, 0.0
    for row in range(losses.size):
        t = target[row]
        if t != ignore_index:
            total_weight += weight[t] if weight.size > 0 else real(1.0)
            total_loss += losses[row]
    return total_weight, total_loss


@kernel
def _cross_entropy_backward(
    gradient: Read1,
    logits: Read2,
    target: ReadInt64,
    weight: Read1,
    log_sums: Read1,
    ignore_index: int,
    smoothing: float,
    out: Write2,
) -> None:
    rows, columns = logits.shape
    weighted = weight.size > 0
    hit, spread = real(1.0 - smoothing), real(smoothing / max(columns, 1))
    all_weights = real(columns)
    if weighted:
        all_weights = real(0.0)
        for j in range(columns):
            all_weights += weight[j]
    for row in range(rows):
        t = target[row]
        if t == ignore_index:
            for j in range(columns):
                out[row, j] = real(0.0)
            continue
        g = gradient[row if gradient.size > 1 else 0]
        log_sum = log_sums[row]
        at_target = g * hit * (weight[t] if weighted else real(1.0))
        everywhere = at_target + g * spread * all_weights
        for j in range(columns):
            out[row, j] = everywhere * exp(logits[row, j] - log_sum)
        out[row, t] -= at_target
        if smoothing != 0.0:
            for j in range(columns):
                out[row, j] -= g * spread * (weight[j] if weighted else real(1.0))
