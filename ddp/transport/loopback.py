"""The transport of a world of one: nothing travels, the sum of one rank is the rank's own array."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ddp.transport.base import accumulator_dtype, aligned_zeros, closed
from ddp.transport.headers import weights
from ddp.transport.order import tree_order
from ddp.transport.shards import Shards
from ddp.transport.summing import Summation, check_divisor


class LoopbackBuffer:
    """Private memory; see `ddp.transport.base.Buffer`."""

    __slots__ = ("array", "header", "in_flight", "shards", "summation")

    def __init__(self, array: NDArray[Any], header: NDArray[np.float64], shards: int | None) -> None:
        self.array = array
        self.header = header
        self.in_flight = False
        self.shards: Shards | None = None
        if shards is None:
            self.summation = Summation([array], [array])
            return
        order = tree_order(shards, 1)
        wide = accumulator_dtype(array.dtype)
        slots = [aligned_zeros(array.size, wide) for _ in range(order.slots(array.dtype))]
        self.shards = Shards(array, slots, order.own[0])
        self.summation = Summation(self.shards.parts, [array], order.merges)


class LoopbackTransport:
    """See `ddp.transport.base.Transport`; needs no MPI."""

    name = "loopback"
    progress = "nothing to move"
    rank = 0
    size = 1

    def __init__(self) -> None:
        self._closed = False

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> LoopbackBuffer:
        accumulator_dtype(dtype)
        return LoopbackBuffer(aligned_zeros(count, dtype), np.zeros(header), shards)

    def start(self, buffer: LoopbackBuffer, divisor: float | None = 1.0) -> None:
        if self._closed:
            raise closed(self.name)
        if buffer.in_flight:
            raise RuntimeError("transport loopback: the buffer was started twice; wait for it first")
        check_divisor(buffer.array.dtype, divisor)
        buffer.in_flight = True
        if buffer.shards is None and divisor in (None, 1):
            return  # the mean of one rank's gradients is there already
        alone = 1.0 if buffer.shards is None else weights([buffer.header])[0]
        buffer.summation.run(alone if divisor is None else divisor)

    def poll(self) -> None:
        """Nothing is ever outstanding."""

    def wait(self, buffer: LoopbackBuffer) -> None:
        if not buffer.in_flight:
            raise RuntimeError("transport loopback: wait for a buffer that was not started")
        buffer.in_flight = False

    def is_done(self, buffer: LoopbackBuffer) -> bool:
        return True

    def independent(self) -> "LoopbackTransport":
        return self

    def close(self) -> None:
        self._closed = True
