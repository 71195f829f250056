"""What a rank carries of a sum over shards: each shard is added as soon as it is there (`ddp.transport.order`)."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ddp.transport.base import accumulator_dtype
from ddp.transport.summing import Summation


class Shards:
    """One rank's shards on their way into a sum: they come in `array` one after another.

    array: shape (n,). slots: as many arrays of shape (n,) as `Order.slots` says, of the dtype in which that of `array`
    is summed. merges: of this rank, `Order.own`.
    """

    def __init__(self, array: NDArray[Any], slots: Sequence[NDArray[Any]], merges: Sequence[int]) -> None:
        self._steps: list[tuple[Summation | None, list[float]]] = []  # with room for the addends' weights
        self._next = 0
        depth, last_stays = 0, accumulator_dtype(array.dtype) == array.dtype
        for place, count in enumerate(merges):
            if count:
                # A sum of two is the same either way round, so these additions are a chain that begins at the top.
                top = slots[depth - count : depth][::-1]
                depth -= count
                self._steps.append((Summation([top[0], array, *top[1:]], [slots[depth]]), [1.0] * (count + 1)))
                depth += 1
            elif last_stays and place == len(merges) - 1:
                self._steps.append((None, []))
            else:
                self._steps.append((Summation([array], [slots[depth]]), [1.0]))
                depth += 1
        self._values = array
        self.parts = [*slots[:depth], *([array] if self._steps[-1][0] is None else [])]
        """What is left when all have come; their weights are in it."""

    def restart(self) -> None:
        """The next one to come is the first."""
        self._next = 0

    def add(self, weight: float = 1.0) -> None:
        """Another one is in `array`, which is free then, but for the last one. It counts `weight` times."""
        step, ones = self._steps[self._next]
        self._next = (self._next + 1) % len(self._steps)
        if weight == 1:
            if step is not None:
                step.run()
        elif step is None:
            Summation([self._values], [self._values]).run(1.0, [weight])
        else:
            step.run(1.0, [*ones[:1], weight, *ones[2:]] if len(ones) > 1 else [weight])
