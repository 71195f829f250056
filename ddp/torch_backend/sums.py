"""Sums of a group over its transport (`ddp.transport`): shared memory on one node, hierarchical over several.

The calls are compared first, as those of every collective are. Then the elements travel in pieces through a few buffers
of the transport, in the order of the calls: copied in, summed, copied out. Which buffer a piece takes follows from the
calls before it, so it is the same on every rank, and a rank that is ahead waits for its own rounds only.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import engine
from ddp.collectives.reductions import ReduceOp
from ddp.collectives.wire import elements, layout_of, settle
from ddp.execution.calls import Call
from ddp.execution.collective import run
from ddp.execution.work import Work
from ddp.groups.process_group import ProcessGroup
from ddp.torch_backend.progress import progress
from ddp.transport import ACCUMULATORS

# Bytes of a buffer: what is small takes little memory, and a large piece stays in the caches of its core.
_SIZES = (1 << 12, 1 << 16, 1 << 20)
_DEPTH = 3  # buffers of a size and dtype


class _Piece(NamedTuple):
    sum: "Sum"
    values: np.ndarray
    size: int
    """Bytes of its buffer."""
    last: bool


class Sums:
    """What is under way of one group."""

    def __init__(self, members: ProcessGroup) -> None:
        self.members = members
        self._comparing: deque[Sum] = deque()
        self._pieces: deque[_Piece] = deque()
        self._moving: deque[tuple[_Piece, Any]] = deque()
        self._buffers: dict[tuple[int, str], list[Any]] = {}
        self._taken: dict[tuple[int, str], int] = {}

    def serves(self, operation: Any, tensor: engine.Tensor) -> bool:
        """Whether the transport sums this; the same on all ranks whose calls fit together."""
        summed = operation in (ReduceOp.SUM, ReduceOp.AVG) and tensor.dtype.numpy.name in ACCUMULATORS
        return summed and self.members.size() > 1

    def begin(self, tensor: engine.Tensor, operation: ReduceOp) -> "Sum":
        """Collective: the tensors of all ranks, in place."""
        made = Sum(self, tensor, operation)
        self._comparing.append(made)
        return made

    def advance(self) -> None:
        """Does what has become possible."""
        while self._comparing and self._comparing[0].comparison.is_completed():
            compared = self._comparing.popleft()
            error = compared.comparison.exception()
            if error is not None:
                compared._end(error)
            else:
                self._pieces.extend(compared.pieces())
        if self._pieces or self._moving:
            self.members.transport.poll()
        while self._take_out() or self._put_in():
            progress.moved = True

    def _take_out(self) -> bool:
        if not self._moving or not self.members.transport.is_done(self._moving[0][1]):
            return False
        piece, buffer = self._moving.popleft()
        self.members.transport.wait(buffer)
        piece.values[...] = buffer.array[: piece.values.size]
        if piece.last:
            piece.sum.finish()
        return True

    def _put_in(self) -> bool:
        if not self._pieces:
            return False
        piece = self._pieces[0]
        kind = piece.size, piece.values.dtype.name
        buffer = self._buffer(kind, piece.values.dtype)
        if any(buffer is busy for _, busy in self._moving):
            return False
        self._pieces.popleft()
        self._taken[kind] += 1
        buffer.array[: piece.values.size] = piece.values
        average = piece.sum.operation is ReduceOp.AVG
        self.members.transport.start(buffer, float(self.members.size()) if average else 1.0)
        self._moving.append((piece, buffer))
        return True

    def _buffer(self, kind: tuple[int, str], dtype: "np.dtype[Any]") -> Any:
        if kind not in self._buffers:
            with self.members.meeting("the making of buffers for sums"):
                count = kind[0] // dtype.itemsize
                transport = self.members.transport
                self._buffers[kind] = [transport.allocate(count, dtype) for _ in range(_DEPTH)]
            self._taken[kind] = 0
        return self._buffers[kind][self._taken[kind] % _DEPTH]


class Sum(Work):
    """One tensor's sum under way; see `Sums.begin`."""

    def __init__(self, sums: Sums, tensor: engine.Tensor, operation: ReduceOp) -> None:
        super().__init__("all_reduce", [tensor])
        call = Call("all_reduce", (("op", operation.name),), (layout_of(tensor),))
        comparison = run(sums.members, call, async_op=True)
        assert comparison is not None
        self.comparison = comparison
        self.operation = operation
        self._sums = sums
        self._tensor = tensor
        self._values = elements(tensor)
        self._channel, self._number = comparison._channel, comparison._number

    def pieces(self) -> Iterator[_Piece]:
        """How the elements are cut; one piece of none."""
        begin = 0
        while True:
            size = _size((self._values.size - begin) * self._values.itemsize)
            end = min(begin + size // self._values.itemsize, self._values.size)
            yield _Piece(self, self._values[begin:end], size, end == self._values.size)
            if end == self._values.size:
                return
            begin = end

    def finish(self) -> None:
        """All pieces are there."""
        settle(self._tensor, self._values, self._tensor)
        self._end()

    def _advance(self) -> None:
        self._sums.advance()


def _size(nbytes: int) -> int:
    """Of the buffer for the next piece of so many bytes: the largest of which half would be filled."""
    return max((size for size in _SIZES if size <= 2 * nbytes), default=_SIZES[0])
