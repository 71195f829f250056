"""A buffer in memory that all ranks of a node see: where its numbers, headers and arrays lie.

What they are for: `ddp.transport.shared`.
"""

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ddp.transport.base import CACHE_LINE, accumulator_dtype, round_up
from ddp.transport.exchange import SUMMED, Exchange
from ddp.transport.order import Order
from ddp.transport.segments import map_segments
from ddp.transport.shards import Shards
from ddp.transport.summing import Summation

IDLE, FILLING, SUMMING, LEAVING, DONE = range(5)
"""What a buffer waits for: the user; all ranks' arrays; this rank's part of the sum; all ranks' parts; the user."""


class SharedBuffer:
    """This rank's segment of shared memory: numbers, headers, arrays; see `ddp.transport.base.Buffer`.

    Lists are over the ranks of the node, in rank order.
    """

    __slots__ = (
        "array",
        "arrays",
        "cursor",
        "divisor",
        "exchange",
        "filled",
        "filled_at",
        "header",
        "headers",
        "parts",
        "round",
        "shards",
        "stage",
        "summation",
        "summed",
        "summed_at",
        "total",
    )

    array: NDArray[Any]
    header: NDArray[np.float64]

    def __init__(
        self,
        node: MPI.Intracomm,
        count: int,
        dtype: np.dtype[Any],
        header: int,
        order: Order,
        first: int,
        small: bool = False,
    ) -> None:
        """order: of all ranks' parts; first: of them that is on this node. small: the way of small buffers."""
        total_at = 2 * CACHE_LINE
        header_at = total_at + round_up(header * 8, CACHE_LINE)
        array_at = header_at + round_up(header * 8, CACHE_LINE)
        slots_at = array_at + round_up(count * dtype.itemsize, CACHE_LINE)
        wide, slots = accumulator_dtype(dtype), order.slots(dtype)
        slot_bytes = round_up(count * wide.itemsize, CACHE_LINE)
        end = slots_at + slots * slot_bytes if slots else array_at + count * dtype.itemsize
        places_at = round_up(end, CACHE_LINE)
        place_bytes = array_at - header_at + round_up(count * dtype.itemsize, CACHE_LINE)
        memory, length = map_segments(node, places_at + 2 * place_bytes if small else end)
        begins = range(0, length * node.size, length)
        numbers = memoryview(memory)
        self.filled = [numbers[at : at + 8].cast("Q") for at in begins]
        self.summed = [numbers[at + CACHE_LINE : at + CACHE_LINE + 8].cast("Q") for at in begins]
        first_at = np.frombuffer(memory, np.uint8, 1).ctypes.data
        self.filled_at = [first_at + at for at in begins]
        self.summed_at = [first_at + at + CACHE_LINE for at in begins]
        self.headers = [np.ndarray((header,), np.float64, memory, at + header_at) for at in begins]
        self.total = np.ndarray((header,), np.float64, memory, total_at)  # of the headers; in the first rank's segment
        self.arrays = [np.ndarray((count,), dtype, memory, at + array_at) for at in begins]
        self.array, self.header = self.arrays[node.rank], self.headers[node.rank]
        self.parts = [[array] for array in self.arrays]  # of each rank, what the sum is made of
        self.shards: Shards | None = None
        if order.shards is not None:
            stacks = [
                Shards(
                    array,
                    [np.ndarray((count,), wide, memory, at + slots_at + slot * slot_bytes) for slot in range(slots)],
                    order.own[first + rank],
                )
                for rank, (at, array) in enumerate(zip(begins, self.arrays, strict=True))
            ]
            self.parts = [stack.parts for stack in stacks]
            self.shards = stacks[node.rank]
        self.summation: Summation | None = None
        self.exchange: Exchange | None = None  # of a small buffer
        if small:
            words, addends_at = place_bytes // 8, array_at - header_at
            turns = [[at + places_at + turn * place_bytes for at in begins] for turn in range(2)]
            places = [[np.ndarray((words,), np.float64, memory, at) for at in of_turn] for of_turn in turns]
            self.exchange = Exchange(
                [np.ndarray((1,), np.int64, memory, at) for at in begins],
                node.rank,
                np.ndarray((words,), np.float64, memory, begins[node.rank] + header_at),
                places,
                [[place[:header] for place in of_turn] for of_turn in places],
                [[np.ndarray((count,), dtype, memory, at + addends_at) for at in of_turn] for of_turn in turns],
                self.array,
            )
        self.divisor: float | None = 1.0
        self.round = 0
        self.stage = IDLE
        self.cursor = 0  # the ranks before this one have reached what the stage waits for

    def is_completed(self, found: int) -> bool:
        """Whether the sum of a small buffer is there, after what the call that sums has found; does what is left."""
        assert self.exchange is not None
        if found < 0:
            self.cursor = ~found
            return False
        if found != SUMMED:
            self.exchange.complete(self.round, self.divisor)
        return True

    def awaited_at(self) -> int:
        """Where in memory the number is that is too low yet, while it waits for the others' arrays or their parts."""
        return (self.filled_at if self.stage == FILLING else self.summed_at)[self.cursor]
