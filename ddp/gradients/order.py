"""The order in which the first backward's gradients come, agreed on by all ranks.

Registration order is a guess: a model may use its modules in another one, and then early buckets wait for late
gradients. Ranks may see different orders, and buckets must be alike on all of them, so one rank's is taken.
Source: rebuild_buckets in torch/csrc/distributed/c10d/reducer.cpp, where it is rank 0's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import engine


class GradientOrder:
    """Notes gradients until it is asked for their order. `exchange`: gathers a small value of every rank; `rank`: which
    one this is.
    """

    def __init__(self, exchange: Callable[[Any], list[Any]], rank: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self._came: list[int] | None = []

    def noting(
        self, index: int, listener: Callable[[bool, engine.Tensor | None], None]
    ) -> Callable[[bool, engine.Tensor | None], None]:
        """The listener of the parameter with this index, which from now on is noted here as well."""

        def on_gradient(arrived: bool, gradient: engine.Tensor | None) -> None:
            if self._came is not None:
                self._came.append(index)
            listener(arrived, gradient)

        return on_gradient

    def forget(self) -> None:
        """Nobody will ask."""
        self._came = None

    def agree(self, parameters: Sequence[engine.Tensor]) -> list[int] | None:
        """Collective, once: indices of all parameters, by the last gradient of each on the lowest rank that had any.

        Parameters without one come last, the last registered first. None where some rank has frozen one meanwhile.
        """
        assert self._came is not None
        last = list(dict.fromkeys(reversed(self._came)))
        last.reverse()
        self._came = None
        frozen = not all(parameter.requires_grad for parameter in parameters)
        # One rank's order is wanted, and nearly always it is that of rank 0: the others only say whether they have one.
        told = self._exchange((frozen, last if self._rank == 0 else bool(last)))
        if any(frozen for frozen, _ in told):
            return None
        first = next((rank for rank, (_, came) in enumerate(told) if came), 0)
        order: list[int] = told[0][1]
        if first:
            order = self._exchange(last if self._rank == first else None)[first]
        seen = set(order)
        return order + [index for index in reversed(range(len(parameters))) if index not in seen]
