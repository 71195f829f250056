"""Sums inside one node through device memory that all its ranks map: no message is sent, no copy made.

The twin of `ddp.transport.shared` on GPUs. Rank r sums slice r of every rank's array in rank order, with one kernel,
and writes the sums to slice r of every array. Two ranks may share one GPU.

The device orders the work, by two events of every rank and buffer that all ranks have opened:

* `filled` of rank q: q's array is full. Before rank r's kernel, its stream waits for those of all ranks.
* `summed` of rank r: r's kernel has read slice r of all arrays and written it to all of them. Before a rank uses
  the sum, its stream waits for those of all ranks.

An event has to be recorded before another process waits for it, or that waits for the record before. So the hosts tell
one another, by two rounds without data of a host transport: `arrived`, started when `filled` was recorded, and
`departed`, started when `summed` was. The headers of the buffer, with every rank's weight, are the data of the first.
No host ever waits for a device.

Why events can be recorded again in the next round: q records `filled` again only after it has left this round, hence
after `departed`, which every rank starts after its stream was told to wait for `filled`; a stream that was told to wait
keeps the record of that moment. r records `summed` again only when all have arrived in the next round, hence have left
this one, hence have told their streams to wait. Why memory can be used again at once: whoever leaves has put the wait
for all `summed` before everything it does next; see `ddp.transport.shared`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ddp.transport.base import Transport, slice_bounds
from ddp.transport.cuda import NotServed
from ddp.transport.cuda.common import CudaBuffer, CudaTransport, laid_out
from ddp.transport.cuda.mapped import Block, MappedBlocks
from ddp.transport.cuda.summing import SliceSum
from ddp.transport.nodes import count_nodes
from ddp.transport.shared import SharedTransport
from engine import device
from engine.memory.backend import require_cupy

if TYPE_CHECKING:
    from mpi4py import MPI

_FILLED, _SUMMED = 0, 1  # of the events of a block


class _Round:
    """What a buffer consists of beside its arrays."""

    def __init__(self, arrived: Any, departed: Any, block: Block | None, events: list[Any], sums: Any) -> None:
        self.arrived = arrived  # of the host transport; its header is the buffer's, then a weight a rank
        self.departed = departed
        self.block = block
        self.events = events  # this rank's
        self.sums: SliceSum | None = sums
        self.leaving = False  # `departed` was started


class IpcTransport(CudaTransport):
    """See `ddp.transport.base.Transport`. `comm`: ranks of one node.

    Raises RuntimeError on every rank when they are on several nodes, or cannot map each other's device memory.
    """

    name = "cuda_ipc"

    def __init__(
        self, comm: "MPI.Intracomm", where: device, host: Transport | None = None, blocks: MappedBlocks | None = None
    ) -> None:
        if host is None and (nodes := count_nodes(comm)) > 1:
            raise NotServed(
                f"transport cuda_ipc: its ranks must be on one node, got {comm.size} ranks on {nodes} nodes; use "
                "'nccl', 'gpu_mpi' or 'staged'"
            )
        super().__init__(where, comm.rank, comm.size)
        self._host = SharedTransport(comm) if host is None else host
        self._owns_blocks = blocks is None
        self._comm = comm.Dup() if blocks is None else comm
        with self._on_device:
            self._blocks = MappedBlocks(self._comm, comm.rank) if blocks is None else blocks
            self._results = require_cupy().cuda.Stream(non_blocking=True)  # waits for the other ranks' sums

    def _allocate(self, count: int, dtype: np.dtype[Any], header: int) -> CudaBuffer:
        cupy = require_cupy()
        arrived = self._host.allocate(0, np.float32, header + self.size)
        departed = self._host.allocate(0, np.float32)
        if not count:
            empty = cupy.empty(0, dtype)
            buffer = CudaBuffer(empty, arrived.header[:header])
            buffer.work = _Round(arrived, departed, None, [], None)
            return buffer
        events = [cupy.cuda.Event(disable_timing=True, interprocess=True) for _ in (_FILLED, _SUMMED)]
        block, memories = self._blocks.allocate(count * dtype.itemsize, events)
        arrays = [laid_out(memory, count, dtype) for memory in memories]
        bounds = slice_bounds(count, dtype.itemsize, self.size)
        mine = slice(bounds[self.rank], bounds[self.rank + 1])
        parts = [array[mine] for array in arrays]
        sums = SliceSum(parts, parts)
        buffer = CudaBuffer(arrays[self.rank], arrived.header[:header])
        buffer.work = _Round(arrived, departed, block, events, sums)
        return buffer

    def _begin(self, buffer: CudaBuffer) -> None:
        work = buffer.work
        if work.block is not None:
            work.events[_FILLED].record(self._stream)
        self._tell_weight(buffer, work.arrived.header)
        work.leaving = False
        self._host.start(work.arrived)

    def _poll(self) -> None:
        self._host.poll()
        super()._poll()

    def _advance(self, buffer: CudaBuffer) -> bool:
        work = buffer.work
        if not work.leaving:
            if not self._host.is_done(work.arrived):
                return False
            self._host.wait(work.arrived)
            if work.block is None:
                return True
            self._sum(buffer)
            work.leaving = True
            self._host.start(work.departed)
        if not self._host.is_done(work.departed):
            return False
        self._host.wait(work.departed)
        self._wait_for(self._results, work.block, _SUMMED)
        buffer.done.record(self._results)
        return True

    def _sum(self, buffer: CudaBuffer) -> None:
        work = buffer.work
        self._wait_for(self._stream, work.block, _FILLED)
        with self._on_stream():
            if buffer.divisor is None:
                work.sums.average(work.arrived.header[-self.size :].tolist())
            else:
                work.sums.run(buffer.divisor, None)
        work.events[_SUMMED].record(self._stream)

    def _wait_for(self, stream: Any, block: Block, which: int) -> None:
        runtime = require_cupy().cuda.runtime
        for events in block.events:
            runtime.streamWaitEvent(stream.ptr, events[which])

    def independent(self) -> "IpcTransport":
        return IpcTransport(self._comm, self.device, self._host.independent(), self._blocks)

    def _leave(self) -> None:
        if self._owns_blocks:
            self._blocks.close()
            self._comm.Free()
        self._host.close()
