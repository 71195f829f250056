"""Sums of small arrays in memory that ranks share: one compiled call lays down, another looks and sums."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddp.transport.headers import weights
from ddp.transport.summing import Summation, as_reals
from engine.ops.reduce.kernels import addresses, prepare_exchange


class Exchange:
    """Sums of small arrays and their headers in memory that ranks share: each lays them down in a place of its own.

    There are two places for each, for even and for odd numbers. numbers: of each rank, (1,) int64, the last one for
    which it has laid them down. source: float64, what rank `own` lays down: its header, and its array behind. places:
    of each rank, like `source`, even and odd. headers, addends: views of these. target: (n,), gets the sum; the
    beginning of `source` that of the headers.
    """

    __slots__ = ("_compiled", "_headers", "_kept", "_sum", "_summations", "_where", "lay_down")

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
        self._compiled = reals.dtype.char in "fd" and reals.size > 0
        wanted = [[as_reals(one) for one in of_turn] if self._compiled else [] for of_turn in addends]
        lay_down, self._sum, kept = prepare_exchange(numbers, own, source, places, headers[0][0].size, wanted, reals)
        self._where = addresses([kept[0]])[0].item()
        self._kept = kept, numbers, places, source
        self.lay_down = partial(lay_down, self._where)
        """Header and array of this rank, with their number."""

    def sum(self, number: int, divisor: float | None, looks: int = 0) -> bool:
        """Whether all ranks have reached this number, and the sum is there. divisor: None for the weighted mean.

        looks: how often to look for a number that is not there.
        """
        found = self._sum(self._where, number, 0.0 if divisor is None else divisor, looks)
        if found == 1 and self._compiled:
            return True
        if found == 0:
            return False
        if divisor is None:
            self._summations[number & 1].average(weights(self._headers[number & 1]))
        else:
            self._summations[number & 1].run(divisor)
        return True
