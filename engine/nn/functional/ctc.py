"""Connectionist temporal classification: the likelihood of a label sequence under all its alignments."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

import engine
from engine.autograd.function import Function, once_differentiable
from engine.calls.listening import heard
from engine.memory.backend import Array, array_module, spec_of_array
from engine.nn.functional.loss import reduced
from engine.ops.creation.from_data import wrap_array
from engine.tensor import Tensor

Lengths = Tensor | Sequence[int]


class _CTC(Function):
    """Negative log-likelihoods (N,) by the forward algorithm; the gradient takes the backward one.

    States are the labels with blanks between, before and after them; a path stays, goes on, or skips the blank between
    two different labels.
    """

    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        states: np.ndarray,
        steps: np.ndarray,
        labels: np.ndarray,
        blank: int,
        zero_infinity: bool,
    ) -> Tensor:
        xp = array_module(log_probs.device)
        states, steps, labels = map(xp.asarray, (states, steps, labels))
        emitted = xp.take_along_axis(log_probs.detach()._array, states[None], 2)
        alpha = _forward_variables(xp, emitted, states, blank)
        rows = xp.arange(len(steps))
        ran = steps > 0
        last = alpha[xp.maximum(steps - 1, 0), rows]
        at_blank = xp.where(ran, last[rows, 2 * labels], xp.where(labels == 0, 0.0, -np.inf).astype(alpha.dtype))
        at_label = xp.where(ran & (labels > 0), last[rows, xp.maximum(2 * labels - 1, 0)], -np.inf)
        losses = -xp.logaddexp(at_blank, at_label)
        ctx.save_for_backward(log_probs)
        ctx.numbers = (emitted, alpha, losses, states, steps, labels, blank)
        ctx.zero_infinity = zero_infinity
        return _wrapped(xp.where(losses == np.inf, 0, losses) if zero_infinity else losses, log_probs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        # As PyTorch's, this is the gradient for log-probabilities that sum to one: what log_softmax makes of both
        # this and the plain derivative is the same.
        (log_probs,) = ctx.saved_tensors
        emitted, alpha, losses, states, steps, labels, blank = ctx.numbers
        xp = array_module(log_probs.device)
        beta = _backward_variables(xp, emitted, states, steps, labels, blank)
        occupied = xp.exp(alpha + beta + losses[:, None])  # (T, N, states): how likely a path is there
        classes = xp.eye(log_probs.shape[2], dtype=emitted.dtype)[states]
        posterior = xp.matmul(occupied.transpose(1, 0, 2), classes).transpose(1, 0, 2)
        gradient = (xp.exp(log_probs.detach()._array) - posterior) * g._array[:, None]
        none = xp.arange(len(alpha))[:, None] >= steps
        if ctx.zero_infinity:
            none = none | (losses == np.inf)
        return _wrapped(xp.where(none[..., None], 0, gradient), log_probs), None, None, None, None, None


def _wrapped(array: Array, like: Tensor) -> Tensor:
    return Tensor(array, spec_of_array(array, like.device))


def _skips(states: Array, blank: int) -> Array:
    """Whether a path may come to a state (from 2 on) from the one two before."""
    return (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])


def _forward_variables(xp: ModuleType, emitted: Array, states: Array, blank: int) -> Array:
    """(T, N, states): log-probability of all beginnings of paths that end in a state, its emission included."""
    alpha = xp.full_like(emitted, -np.inf)
    alpha[0, :, :2] = emitted[0, :, :2]
    skips = _skips(states, blank)
    for t in range(1, len(emitted)):
        before, now = alpha[t - 1], alpha[t]
        now[...] = before
        now[:, 1:] = xp.logaddexp(now[:, 1:], before[:, :-1])
        now[:, 2:] = xp.logaddexp(now[:, 2:], xp.where(skips, before[:, :-2], -np.inf))
        now += emitted[t]
    return alpha


def _backward_variables(
    xp: ModuleType, emitted: Array, states: Array, steps: Array, labels: Array, blank: int
) -> Array:
    """(T, N, states): log-probability of all ends of paths after a state, its own emission left out."""
    beta = xp.full_like(emitted, -np.inf)
    skips, rows = _skips(states, blank), xp.arange(len(steps))
    last = xp.full(states.shape, -np.inf, emitted.dtype)
    last[rows, 2 * labels] = 0.0
    last[rows, xp.maximum(2 * labels - 1, 0)] = 0.0
    for t in range(len(emitted) - 1, -1, -1):
        if t + 1 < len(emitted):
            after, now = beta[t + 1] + emitted[t + 1], beta[t]
            now[...] = after
            now[:, :-1] = xp.logaddexp(now[:, :-1], after[:, 1:])
            now[:, :-2] = xp.logaddexp(now[:, :-2], xp.where(skips, after[:, 2:], -np.inf))
        beta[t] = xp.where((steps - 1 == t)[:, None], last, beta[t])
    return beta


def _numbers(values: Lengths) -> np.ndarray:
    """Lengths and targets are looked at on the host, where the loop over their alignments is laid out."""
    return np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values, np.int64)


@heard
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log p(targets | log_probs), summed over all alignments. Graves et al. (2006), torch.nn.functional.ctc_loss.

    Shapes: log_probs (T, N, C), log-probabilities of C classes, class `blank` meaning none, or (T, C); targets (N, S),
    or all targets one after the other; lengths (N,). "mean" divides each loss by its target's length first.
    zero_infinity: losses of targets too long for their inputs, which are infinite, and their gradients become 0.
    Raises: RuntimeError for dtypes, lengths or labels out of range.
    """
    if log_probs.dtype not in (engine.float32, engine.float64):
        raise RuntimeError(f'"ctc_loss" not implemented for {log_probs.dtype}; convert log_probs with .float()')
    batched = log_probs.dim() == 3
    if not batched:
        log_probs = log_probs.unsqueeze(1)
    longest, batch, classes = log_probs.shape
    steps, labels = _numbers(input_lengths).reshape(-1), _numbers(target_lengths).reshape(-1)
    if not 0 <= blank < classes:
        raise RuntimeError(f"blank must be in label range: expected 0 to {classes - 1}, got {blank}")
    for name, lengths in (("input_lengths", steps), ("target_lengths", labels)):
        if len(lengths) != batch:
            raise RuntimeError(f"{name} must be of size batch_size: expected {batch}, got {len(lengths)}")
    if steps.max(initial=0) > longest:
        raise RuntimeError(
            f"Expected input_lengths to have value at most {longest}, but got value {steps.max()} (while checking "
            "arguments for ctc_loss)"
        )
    padded = _padded_targets(targets, labels, batch)
    if padded.size and not (padded.min() >= 0 and padded.max() < classes):
        raise RuntimeError(f"ctc_loss: expected targets from 0 to {classes - 1}, got {padded.min()} to {padded.max()}")
    states = np.full((batch, 2 * padded.shape[1] + 1), blank)
    states[:, 1::2] = padded
    losses: Any = _CTC.apply(log_probs, states, steps, labels, blank, zero_infinity)
    if reduction == "mean":
        losses = losses / wrap_array(np.maximum(labels, 1).astype(losses.dtype.numpy), losses.device)
    losses = reduced(losses, reduction)
    return losses if batched or reduction != "none" else losses.squeeze(0)


def _padded_targets(targets: Tensor, labels: np.ndarray, batch: int) -> np.ndarray:
    """(N, longest), 0 where a target has ended."""
    numbers = _numbers(targets)
    padded = np.zeros((batch, int(labels.max(initial=0))), np.int64)
    if numbers.ndim == 1 and batch == 1:
        numbers = numbers[None]
    if numbers.ndim == 2:
        if padded.shape[1] > numbers.shape[1]:
            raise RuntimeError(
                f"Expected tensor targets to have size at least {padded.shape[1]} at dimension 1, but got size "
                f"{tuple(numbers.shape)} (while checking arguments for ctc_loss)"
            )
        rows: Sequence[np.ndarray] = list(numbers)
    else:
        if int(labels.sum()) != len(numbers):
            raise RuntimeError(
                f"ctc_loss: expected as many targets as target_lengths say, {labels.sum()}, got {len(numbers)}"
            )
        rows = np.split(numbers, np.cumsum(labels)[:-1])
    for row, given, length in zip(padded, rows, labels, strict=True):
        row[:length] = given[:length]
    return padded
