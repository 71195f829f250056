"""Sums by NCCL's messages, in this package's order: for ranks that have a GPU each, on any number of nodes.

Rank r receives slice r of the array from every rank (grouped sends and receives), sums them in rank order with the
kernel that `cuda_ipc` uses, and an all-gather in place hands the sums out. A rank sends and receives 2 (N - 1) / N of
the bytes, the least possible. Why not NCCL's own all-reduce: its order of summation is the library's and changes with
size, topology and version, halves are summed in half precision, and weights would need another pass.

Everything of a transport is queued on one stream, buffer after buffer in the order of start, which NCCL asks for: a
buffer's turn comes when the headers of all ranks are there (they travel between the hosts), so no kernel of NCCL
occupies the GPU before all ranks have filled their buffers.

An `independent` transport has a communicator and a stream of its own. Where ranks start sums of two of them
in different orders, NCCL needs room on the GPU for both at once, and nothing that waits for the whole GPU between them.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ddp.transport.base import Transport, slice_bounds
from ddp.transport.cuda import NotServed
from ddp.transport.cuda.common import CudaBuffer, CudaTransport, device_zeros
from ddp.transport.cuda.summing import SliceSum
from engine import device
from engine.memory.backend import find_nccl, require_cupy

if TYPE_CHECKING:
    from mpi4py import MPI


class _Exchange:
    """What a buffer consists of beside its arrays."""

    def __init__(self, headers: Any, slices: list[Any], received: list[Any], sums: SliceSum | None) -> None:
        self.headers = headers  # of the host transport: the buffer's, then a weight a rank
        self.slices = slices  # of the array, one a rank
        self.received = received  # where this rank's slice of every rank arrives; None for its own
        self.sums = sums
        self.whole: Any = None  # the result, padded to slices of equal length


class NcclTransport(CudaTransport):
    """See `ddp.transport.base.Transport`. `comm`: any intracommunicator; host: what carries headers.

    Raises RuntimeError on every rank when there is no NCCL, or two ranks have the same GPU.
    """

    name = "nccl"
    progress = "the device"

    def __init__(self, comm: "MPI.Intracomm", where: device, host: Transport | None = None) -> None:
        super().__init__(where, comm.rank, comm.size)
        nccl: Any = find_nccl()
        if host is None:
            _check_gpus(comm, where, nccl is not None)
            from ddp.transport import choose_transport

            host = choose_transport(comm)
        self._host = host
        self._comm = comm
        self._library = nccl
        self._scratch: Any = None
        problem, identity = "", None
        if comm.rank == 0:
            try:
                identity = nccl.get_unique_id()
            except nccl.NcclError as error:
                problem = f"transport nccl: {error}"
        identity, problem = comm.bcast((identity, problem))
        if not problem:
            try:
                with self._on_device:
                    self._nccl = nccl.NcclCommunicator(comm.size, identity, comm.rank)
            except nccl.NcclError as error:
                problem = f"transport nccl: rank {comm.rank}: {error}"
        problems = [text for text in comm.allgather(problem) if text]
        if problems:
            raise RuntimeError(problems[0])

    def _allocate(self, count: int, dtype: np.dtype[Any], header: int) -> CudaBuffer:
        headers = self._host.allocate(0, np.float32, header + self.size)
        length = slice_bounds(count, dtype.itemsize, self.size)[1]
        whole = device_zeros(length * self.size, dtype)
        buffer = CudaBuffer(whole[:count], headers.header[:header])
        slices = [whole[rank * length : (rank + 1) * length] for rank in range(self.size)]
        sums, received = None, [None] * self.size
        if count:
            if self._scratch is None or self._scratch.nbytes < whole.nbytes:
                self._scratch = require_cupy().empty(whole.nbytes, np.uint8)
            rows = self._scratch[: whole.nbytes].view(dtype).reshape(self.size, length)
            received = [None if rank == self.rank else rows[rank] for rank in range(self.size)]
            addends = [slices[rank] if row is None else row for rank, row in enumerate(received)]
            sums = SliceSum(addends, [slices[self.rank]])
        buffer.work = _Exchange(headers, slices, received, sums)
        buffer.work.whole = whole
        return buffer

    def _begin(self, buffer: CudaBuffer) -> None:
        headers = buffer.work.headers
        self._tell_weight(buffer, headers.header)
        self._host.start(headers)

    def _poll(self) -> None:
        self._host.poll()
        super()._poll()

    def _advance(self, buffer: CudaBuffer) -> bool:
        # In the order of start, whichever headers come first.
        if buffer is not self._in_flight[0] or not self._host.is_done(buffer.work.headers):
            return False
        self._host.wait(buffer.work.headers)
        if buffer.array.size:
            self._exchange(buffer)
        return True

    def _exchange(self, buffer: CudaBuffer) -> None:
        nccl = self._library
        work, stream = buffer.work, self._stream
        nbytes = work.slices[0].nbytes
        nccl.groupStart()
        for rank, (own, row) in enumerate(zip(work.slices, work.received, strict=True)):
            if row is not None:
                self._nccl.send(own.data.ptr, nbytes, nccl.NCCL_UINT8, rank, stream.ptr)
                self._nccl.recv(row.data.ptr, nbytes, nccl.NCCL_UINT8, rank, stream.ptr)
        nccl.groupEnd()
        with self._on_stream():
            if buffer.divisor is None:
                work.sums.average(work.headers.header[-self.size :].tolist())
            else:
                work.sums.run(buffer.divisor, None)
        start = work.whole.data.ptr
        self._nccl.allGather(start + self.rank * nbytes, start, nbytes, nccl.NCCL_UINT8, stream.ptr)
        buffer.done.record(stream)

    def independent(self) -> "NcclTransport":
        return NcclTransport(self._comm, self.device, self._host.independent())

    def _leave(self) -> None:
        self._stream.synchronize()
        self._nccl.destroy()
        self._host.close()


def _check_gpus(comm: "MPI.Intracomm", where: device, available: bool) -> None:
    """Collective. Raises unless NCCL is there on all ranks, and each has a GPU of its own."""
    from mpi4py import MPI

    cuda = require_cupy().cuda
    found = comm.allgather((available, MPI.Get_processor_name(), cuda.Device(where.index).pci_bus_id))
    without = [rank for rank, (there, *_) in enumerate(found) if not there]
    if without:
        raise NotServed(
            f"transport nccl: rank {without[0]} finds no NCCL library; pip install nvidia-nccl-cu12 (or -cu13)"
        )
    owners: dict[Any, int] = {}
    for rank, (_, host, bus) in enumerate(found):
        other = owners.setdefault((host, bus), rank)
        if other != rank:
            raise NotServed(
                f"transport nccl: ranks {other} and {rank} share GPU {bus} of {host}, which NCCL refuses; give each "
                "rank a GPU of its own, or use 'cuda_ipc' or 'staged'"
            )
