"""Sums by MPI messages from and to device memory, for an MPI that was seen to send it (`ddp.transport.cuda.probe`).

As `ddp.transport.mpi`, in chunks of two steps: rank r receives slice r of the chunk from every rank and sums them in
rank order, then sends the sums to all. With plain sends and receives, which are what the probe has tried; collectives
on device memory are a matter of each MPI. The host looks at events before it posts a message (the array is full, the
slice is summed) and at requests before it queues a kernel, whenever it is called.

Messages between two ranks are matched by the order in which they are posted, so chunks take each step in the order of
start on every rank.
"""

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ddp.transport.base import CACHE_LINE, Transport, slice_bounds
from ddp.transport.cuda import NotServed
from ddp.transport.cuda.common import CudaBuffer, CudaTransport, device_zeros
from ddp.transport.cuda.summing import SliceSum
from engine import device
from engine.cuda.streams import has_passed
from engine.memory.backend import require_cupy

if TYPE_CHECKING:
    from mpi4py import MPI

CHUNK_BYTES = 1 << 22
_DEPTH = 2  # chunks whose messages are under way: one is summed while the next one comes
_SCATTER, _GATHER = 1, 2  # tags

_WAITING, _SCATTERING, _ADDING, _GATHERING, _OVER = range(5)


class _Chunk:
    """A part of a buffer's arrays and its way through the two steps."""

    __slots__ = ("array", "bounds", "place", "requests", "rows", "stage", "sums", "total")

    def __init__(self, array: Any, bounds: list[int], place: int, rows: list[Any], rank: int) -> None:
        self.array = array
        self.bounds = bounds  # slice r, of rank r
        self.place = place  # which scratch memory it uses
        self.rows = rows  # of that: where a slice of every rank arrives
        mine = slice(bounds[rank], bounds[rank + 1])
        addends = [array[mine] if peer == rank else row for peer, row in enumerate(rows)]
        self.sums = SliceSum(addends, [array[mine]])
        self.total = require_cupy().cuda.Event(disable_timing=True)  # the slice is summed
        self.requests: list[Any] = []
        self.stage = _OVER


class _Messages:
    """What a buffer consists of beside its arrays."""

    def __init__(self, headers: Any, chunks: list[_Chunk]) -> None:
        self.headers = headers  # of the host transport: the buffer's, then a weight a rank
        self.chunks = chunks
        self.known = False  # the headers
        self.filled = require_cupy().cuda.Event(disable_timing=True)


class GpuMpiTransport(CudaTransport):
    """See `ddp.transport.base.Transport`. `comm`: any intracommunicator; it is duplicated. host: what carries headers.

    Raises RuntimeError on every rank when the probe has not seen this MPI send device memory.
    """

    name = "gpu_mpi"

    def __init__(self, comm: "MPI.Intracomm", where: device, host: Transport | None = None) -> None:
        super().__init__(where, comm.rank, comm.size)
        if host is None:
            _check_mpi(comm)
            from ddp.transport import choose_transport

            host = choose_transport(comm)
        self._host = host
        self._comm = comm.Dup()
        with self._on_device:
            room = CHUNK_BYTES + comm.size * CACHE_LINE
            self._scratch = [device_zeros(room, np.uint8) for _ in range(_DEPTH)]
        self._free = [True] * _DEPTH
        self._queue: deque[tuple[CudaBuffer, _Chunk]] = deque()  # not yet posted
        self._scattering: deque[tuple[CudaBuffer, _Chunk]] = deque()
        self._adding: deque[tuple[CudaBuffer, _Chunk]] = deque()
        self._gathering: list[tuple[CudaBuffer, _Chunk]] = []

    def _allocate(self, count: int, dtype: np.dtype[Any], header: int) -> CudaBuffer:
        headers = self._host.allocate(0, np.float32, header + self.size)
        array = device_zeros(count, dtype)
        length = CHUNK_BYTES // dtype.itemsize
        chunks = []
        for number, begin in enumerate(range(0, count, length)):
            part, place = slice(begin, min(begin + length, count)), number % _DEPTH
            bounds = slice_bounds(part.stop - part.start, dtype.itemsize, self.size)
            mine = bounds[self.rank + 1] - bounds[self.rank]
            nbytes = mine * dtype.itemsize
            rows = [self._scratch[place][at * nbytes : (at + 1) * nbytes].view(dtype) for at in range(self.size)]
            chunks.append(_Chunk(array[part], bounds, place, rows, self.rank))
        buffer = CudaBuffer(array, headers.header[:header])
        buffer.work = _Messages(headers, chunks)
        return buffer

    def _begin(self, buffer: CudaBuffer) -> None:
        work = buffer.work
        self._tell_weight(buffer, work.headers.header)
        work.known = False
        self._host.start(work.headers)
        work.filled.record(self._stream)
        for chunk in work.chunks:
            chunk.stage = _WAITING
            self._queue.append((buffer, chunk))

    def _poll(self) -> None:
        self._host.poll()
        while self._queue and self._free[self._queue[0][1].place] and has_passed(self._queue[0][0].work.filled):
            self._scatter(*self._queue.popleft())
        while self._scattering and self._add(*self._scattering[0]):
            self._scattering.popleft()
        while self._adding and has_passed(self._adding[0][1].total):
            self._gather(*self._adding.popleft())
        for pair in tuple(self._gathering):
            if all(request.Test() for request in pair[1].requests):
                pair[1].stage = _OVER
                self._free[pair[1].place] = True
                self._gathering.remove(pair)
        super()._poll()

    def _advance(self, buffer: CudaBuffer) -> bool:
        work = buffer.work
        if not self._learn_headers(work) or any(chunk.stage != _OVER for chunk in work.chunks):
            return False
        buffer.done.record(self._stream)
        return True

    def _learn_headers(self, work: _Messages) -> bool:
        if not work.known and self._host.is_done(work.headers):
            self._host.wait(work.headers)
            work.known = True
        return work.known

    def _scatter(self, buffer: CudaBuffer, chunk: _Chunk) -> None:
        self._free[chunk.place] = False
        mine = chunk.bounds[self.rank + 1] - chunk.bounds[self.rank]
        others = [rank for rank in range(self.size) if rank != self.rank]
        slices = [chunk.array[begin:end] for begin, end in pairwise(chunk.bounds)]
        chunk.requests = [self._comm.Irecv(_bytes(chunk.rows[rank]), rank, _SCATTER) for rank in others if mine]
        chunk.requests += [
            self._comm.Isend(_bytes(slices[rank]), rank, _SCATTER) for rank in others if slices[rank].size
        ]
        chunk.stage = _SCATTERING
        self._scattering.append((buffer, chunk))

    def _add(self, buffer: CudaBuffer, chunk: _Chunk) -> bool:
        """Queue the sum, if everything for it is there."""
        work = buffer.work
        if not self._learn_headers(work) or not all(request.Test() for request in chunk.requests):
            return False
        with self._on_stream():
            if buffer.divisor is None:
                chunk.sums.average(work.headers.header[-self.size :].tolist())
            else:
                chunk.sums.run(buffer.divisor, None)
        chunk.total.record(self._stream)
        chunk.stage = _ADDING
        self._adding.append((buffer, chunk))
        return True

    def _gather(self, buffer: CudaBuffer, chunk: _Chunk) -> None:
        slices = [chunk.array[begin:end] for begin, end in pairwise(chunk.bounds)]
        others = [rank for rank in range(self.size) if rank != self.rank]
        chunk.requests = [self._comm.Irecv(_bytes(slices[rank]), rank, _GATHER) for rank in others if slices[rank].size]
        if slices[self.rank].size:
            chunk.requests += [self._comm.Isend(_bytes(slices[self.rank]), rank, _GATHER) for rank in others]
        chunk.stage = _GATHERING
        self._gathering.append((buffer, chunk))

    def independent(self) -> "GpuMpiTransport":
        return GpuMpiTransport(self._comm, self.device, self._host.independent())

    def _leave(self) -> None:
        self._comm.Free()
        self._host.close()


def _bytes(array: Any) -> list[Any]:
    """By its address: asked for its interfaces, an array may wait for a stream."""
    from mpi4py import MPI

    return [MPI.buffer.fromaddress(array.data.ptr, array.nbytes), MPI.BYTE]


def _check_mpi(comm: "MPI.Intracomm") -> None:
    """Collective: raises unless the probe has seen this MPI send device memory."""
    from ddp.transport.cuda.probe import find_verdict

    verdict = comm.bcast(find_verdict() if comm.rank == 0 else None)
    if not verdict.works:
        raise NotServed(f"transport gpu_mpi: {verdict.why}; use 'staged'")
