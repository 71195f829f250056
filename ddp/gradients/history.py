"""Averaged gradients that can be differentiated again: what `backward(create_graph=True)` leaves in `.grad`."""

from typing import Any

import engine
from engine.autograd import Function


class _Mean(Function):
    """The mean over the ranks, as a function of this rank's part of it."""

    @staticmethod
    def forward(ctx: Any, local: engine.Tensor, mean: engine.Tensor) -> engine.Tensor:
        return mean.clone()

    @staticmethod
    def backward(ctx: Any, gradient: engine.Tensor) -> tuple[engine.Tensor, None]:
        return gradient, None


def with_history_of(local: engine.Tensor, mean: engine.Tensor) -> engine.Tensor:
    """A copy of `mean` with the history of `local`, this rank's gradient.

    The derivative is 1 and not 1/N: what is computed from the mean is differentiated on every rank with respect to that
    rank's part, and the next backward averages these N derivatives. For P of the mean that is the mean of P' g_r',
    which is the derivative of P of the mean.
    """
    return _Mean.apply(local, mean)
