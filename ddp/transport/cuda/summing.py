"""The order in which ranks are added, on a GPU: rank order, element by element, then one division, in one kernel.

The twin of `ddp.transport.summing`, with the same bits.
"""

from collections.abc import Sequence
from typing import Any

from engine.ops.buckets.cuda import prepare_sum


class SliceSum:
    """Sums fixed slices of fixed arrays, as often as asked, on the current stream.

    addends: one array of shape (n,) per rank, in rank order, all of one dtype; they may be memory of other processes.
    targets: arrays of shape (n,) that receive the result; they may be addends.
    """

    def __init__(self, addends: Sequence[Any], targets: Sequence[Any]) -> None:
        self.run = prepare_sum(addends, targets)
        """`run(divisor=1.0, weights=None)`: the sum, over the divisor; an addend of weight 0 is not looked at."""

    def average(self, weights: Sequence[float]) -> None:
        """The mean weighted by one number a rank. Equal weights give the bits of a plain mean."""
        if weights.count(weights[0]) == len(weights):
            self.run(len(weights), None)
        else:
            self.run(sum(weights), weights)
