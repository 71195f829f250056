"""Sums of small arrays in memory that ranks share: one compiled call lays down, another looks and sums."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp.transport.headers import weights
from ddp.transport.summing import Summation, as_reals
from engine.ops.reduce.kernels.slices import addresses, prepare_exchange

SUMMED = 1
"""Of `Exchange.sum`: nothing is left to be done."""


class Exchange:
    """Sums of small arrays and their headers in memory that ranks share: each lays them down in a place of its own.

    There are two places for each, for even and for odd numbers. numbers: of each rank, (1,) int64, the last one for
    which it has laid them down. source: float64, what rank `own` lays down: its header, and its array behind. places:
    of each rank, like `source`, even and odd. headers, addends: views of these. target: (n,), gets the sum; the
    beginning of `source` that of the headers.
    """

    __slots__ = ("_headers", "_kept", "_summations", "lay_down", "sum")

    def __init__(
        self,
        numbers: Sequence[NDArray[np.int64]],
        own: int,
        source: NDArray[np.float64],
        places: Sequence[Sequence[NDArray[np.float64]]],
        headers: Sequence[Sequence[NDArray[np.float64]]],
        addends: Sequence[Sequence[NDArray[Any]]],
        target: NDArray[Any],
    ) -> None:
        self._headers = headers
        self._summations = [Summation(of_turn, [target]) for of_turn in addends]
        reals = as_reals(target)
        compiled = reals.dtype.char in "fd"
        wanted = [[as_reals(one) for one in of_turn] if compiled else [] for of_turn in addends]
        lay_down, look_and_sum, kept = prepare_exchange(numbers, own, source, places, headers[0][0].size, wanted, reals)
        where = addresses([kept[0]])[0].item()
        self._kept = kept, numbers, places, source
        self.lay_down = partial(lay_down, where)
        """Header and array of this rank, with their number."""
        self.sum = partial(look_and_sum, where)
        """A function of the number that all must have reached, of the divisor, 0 for the weighted mean, and of how many
        looks at a number that is not there: `SUMMED`; < 0 where one is not there, ``~rank`` of the first; anything else
        where `complete` has to do the rest.
        """

    def complete(self, number: int, divisor: float | None) -> None:
        """Sums what is not summed by the call: other dtypes, and weights that differ. divisor: None for the mean."""
        if divisor is None:
            self._summations[number & 1].average(weights(self._headers[number & 1]))
        else:
            self._summations[number & 1].run(divisor)
