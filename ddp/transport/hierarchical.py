"""Sums over several nodes: shared memory inside each, one communicator per local index between them.

As in `ddp.transport.shared`, rank r of a node owns slice r of the arrays. When the node's arrays are filled, each owner
adds up its slice, chunk by chunk, along the chain of nodes (`ddp.transport.chain`); the last one divides. An owner
writes the results to every array of its node and says so by `summed`. All owners of a node do this side by side.

The chain is what keeps the order of summation: ranks one after the other, node after node, so the bits are those of
`shared` and `mpi` wherever the ranks of each node are consecutive, as launchers place them. (Placed otherwise, the
order is node by node, nodes by their lowest rank, and the same on every rank.) It costs little in bandwidth: between
two nodes the array crosses the link once in each direction, the least possible, and the nodes in the midst of a longer
chain send and receive it twice, as in a long ring. A chunk needs 2 (nodes - 1) hops, which matters for small buckets on
many nodes.

Nodes may have different numbers of ranks: there are as many slices, and owners, as the smallest node has ranks; further
ranks of a node fill and wait. Headers are gathered from all ranks before the first chunk of their buffer is summed.

Buffers go through the chain in the order of start. At most `DEPTH` chunks are on their way forward.
"""

from collections import deque
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ddp.transport.base import accumulator_dtype, aligned_zeros, slice_bounds
from ddp.transport.chain import Chain
from ddp.transport.headers import weights
from ddp.transport.order import Order, rank_order, tree_order
from ddp.transport.shared import SharedTransport
from ddp.transport.shared_buffer import FILLING, SharedBuffer
from ddp.transport.summing import Summation, sum_headers, weighing

CHUNK_BYTES = 1 << 18
DEPTH = 8


class HierarchicalBuffer(SharedBuffer):
    """The node's segments, and this owner's way through the chain."""

    __slots__ = ("chunks", "everyones", "merges", "remaining", "sent", "sums", "weights")

    def __init__(
        self,
        node: MPI.Intracomm,
        count: int,
        dtype: np.dtype[Any],
        header: int,
        order: Order,
        first: int,
    ) -> None:
        super().__init__(node, count, dtype, header, order, first)
        ranks, last = len(order.parts), first + node.size
        # How many sums come from the nodes before this one, and how many go to the next; see `Order`.
        self.sums = order.left(first), order.left(last)
        self.merges = None if order.shards is None else (0,) * self.sums[0] + order.of(first, last)
        self.chunks: list[slice] = []  # of this rank's slice
        self.sent = np.zeros((node.size, header))  # headers of the node
        self.everyones = np.zeros((ranks, header))
        self.weights: list[float] | None = None  # of the node's ranks, where ranks' weights differ
        self.remaining = -1  # chunks and messages of this round that are not complete; -1: not begun


class _Arriving(NamedTuple):
    """The sum so far of a chunk, on its way from the node before."""

    request: MPI.Request
    buffer: HierarchicalBuffer
    chunk: slice
    scratch: NDArray[np.uint8]


class HierarchicalTransport(SharedTransport):
    """See `ddp.transport.base.Transport`. `comm`: any intracommunicator; it is duplicated.

    node: ranks with the same number are treated as one node, which must be able to share memory; None: as the machine
    has it.
    """

    name = "hierarchical"

    def __init__(self, comm: MPI.Intracomm, node: int | None = None) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm.Dup()
        self._node_number = node
        inside = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank) if node is None else comm.Split(node, comm.rank)
        assert isinstance(inside, MPI.Intracomm)
        self._owners = min(comm.allgather(inside.size))
        is_owner = inside.rank < self._owners
        first = inside.bcast(comm.rank)  # orders the nodes
        self._column = cast("MPI.Intracomm", self._comm.Split(inside.rank if is_owner else MPI.UNDEFINED, first))
        self._enter(inside)
        if is_owner:
            self._chain = Chain(self._column)
            nodes = self._column.allgather(inside.allgather(comm.rank))
            self._sizes = [len(ranks) for ranks in nodes]
            self._order = np.argsort([rank for ranks in nodes for rank in ranks])
        else:
            inside.allgather(comm.rank)
        self._first = first
        self._alone = inside.size == comm.size  # one node only: as in the shared transport
        if not self._alone:
            self._looks = 0  # messages of other nodes want to be looked for, too
        self._in_order = all(comm.allgather(comm.rank == first + inside.rank))
        self._announcing: deque[tuple[MPI.Request, HierarchicalBuffer]] = deque()  # headers under way
        self._queue: deque[tuple[HierarchicalBuffer, slice]] = deque()  # chunks that may be summed
        self._arriving: deque[_Arriving] = deque()
        self._scratch = [
            aligned_zeros(CHUNK_BYTES, np.uint8) for _ in range(DEPTH if is_owner and not self._alone else 0)
        ]

    def allocate(
        self,
        count: int,
        dtype: DTypeLike,
        header: int = 0,
        shards: int | None = None,
    ) -> SharedBuffer:
        if self._alone:
            return super().allocate(count, dtype, header, shards)
        wide = accumulator_dtype(dtype).itemsize
        if shards is not None and not self._in_order:
            raise RuntimeError(
                "transport hierarchical: shards are added in the order of ranks, but the ranks of a node do not follow "
                "each other; place them so (mpirun --map-by slot), or choose transport='mpi'"
            )
        order = rank_order(self.size) if shards is None else tree_order(shards, self.size)
        buffer = HierarchicalBuffer(self._node, count, np.dtype(dtype), header, order, self._first)
        if self._local < self._owners:
            bounds = slice_bounds(count, buffer.array.dtype.itemsize, self._owners)
            begin, end = bounds[self._local], bounds[self._local + 1]
            most = max(order.left(ranks) for ranks in range(1, self.size + 1))  # at once in the scratch memory
            length = CHUNK_BYTES // (wide * most)
            buffer.chunks = [slice(at, min(at + length, end)) for at in range(begin, end, length)]
        return buffer

    def _advance_all(self) -> None:
        if self._alone:
            super()._advance_all()
            return
        for buffer in tuple(self._in_flight):
            self._advance(buffer)
            if buffer.stage == FILLING:
                break  # later buffers go through the chain later, on every node
        if self._local < self._owners:
            self._move()

    def independent(self) -> "HierarchicalTransport":
        return HierarchicalTransport(self._comm, self._node_number)

    def _leave(self) -> None:
        super()._leave()
        if self._local < self._owners:
            self._column.Free()
        self._comm.Free()

    # --- between nodes ------------------------------------------------------------------------------------------------

    def _sum(self, buffer: Any) -> bool:
        if self._alone:
            return super()._sum(buffer)
        if self._local >= self._owners:
            return True
        if buffer.remaining < 0:
            buffer.remaining = 1 + len(buffer.chunks)  # the headers count too
            for row, header in zip(buffer.sent, buffer.headers, strict=True):
                row[:] = header
            counts = [size * buffer.header.size for size in self._sizes]
            request = self._column.Iallgatherv(buffer.sent, [buffer.everyones, counts])
            self._announcing.append((request, buffer))
            self._move()
        if buffer.remaining:
            return False
        buffer.remaining = -1
        return True

    def _move(self) -> None:
        """Go on with every message that has come or gone."""
        while self._announcing and self._announcing[0][0].Test():
            self._begin(self._announcing.popleft()[1])
        self._chain.move()
        while self._arriving and self._arriving[0].request.Test():
            self._add(*self._arriving.popleft()[1:])
        while self._queue and self._scratch:
            buffer, chunk = self._queue.popleft()
            scratch = self._scratch.pop()
            if self._chain.at == 0:
                self._add(buffer, chunk, scratch)
            else:
                request = self._chain.expect(_part(scratch, buffer, chunk, buffer.sums[0]))
                self._arriving.append(_Arriving(request, buffer, chunk, scratch))

    def _begin(self, buffer: HierarchicalBuffer) -> None:
        """The ranks' headers are known."""
        rows = buffer.everyones[self._order]
        if self._local == 0:
            sum_headers(rows, out=buffer.total)
        buffer.weights = None
        if buffer.divisor is None:
            buffer.divisor, unequal = weighing(weights(rows), buffer.shards is not None)
            buffer.weights = None if unequal is None else weights(buffer.headers)
        buffer.remaining -= 1
        self._queue.extend((buffer, chunk) for chunk in buffer.chunks)

    def _add(self, buffer: HierarchicalBuffer, chunk: slice, scratch: NDArray[np.uint8]) -> None:
        """Add this node's ranks to the sum of those before, and pass it on: to the next node, or as result."""
        addends = [part[chunk] for parts in buffer.parts for part in parts]
        weights = buffer.weights
        if self._chain.at:
            addends[:0] = _sums(scratch, buffer, chunk, buffer.sums[0])
            weights = weights and [1.0, *weights]
        free = partial(self._scratch.append, scratch)
        if self._chain.at < self._chain.last:
            Summation(addends, _sums(scratch, buffer, chunk, buffer.sums[1]), buffer.merges).run(1.0, weights)
            total = _part(scratch, buffer, chunk, buffer.sums[1])
            self._chain.pass_on(buffer, total, buffer.array[chunk], free, partial(self._take, buffer, chunk))
            return
        assert buffer.divisor is not None
        Summation(addends, [array[chunk] for array in buffer.arrays], buffer.merges).run(buffer.divisor, weights)
        free()
        self._chain.give_back(buffer, buffer.array[chunk])
        buffer.remaining -= 1

    def _take(self, buffer: HierarchicalBuffer, chunk: slice) -> None:
        """A result has come from the next node."""
        for array in buffer.arrays:
            if array is not buffer.array:
                array[chunk] = buffer.array[chunk]
        buffer.remaining -= 1


def _part(scratch: NDArray[np.uint8], buffer: HierarchicalBuffer, chunk: slice, count: int) -> NDArray[Any]:
    """Scratch memory as so many sums of a chunk."""
    dtype = accumulator_dtype(buffer.array.dtype)
    return scratch[: count * (chunk.stop - chunk.start) * dtype.itemsize].view(dtype)


def _sums(scratch: NDArray[np.uint8], buffer: HierarchicalBuffer, chunk: slice, count: int) -> list[NDArray[Any]]:
    """The same one by one."""
    return list(_part(scratch, buffer, chunk, count).reshape(count, -1))
