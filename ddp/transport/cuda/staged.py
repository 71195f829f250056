"""Sums of device memory through host memory: any host transport in the middle, copies on streams of their own.

A buffer is cut into chunks, and a chunk has a buffer of the host transport, whose memory is page-locked so that copies
run beside everything else. A chunk goes through

    device --(copy, event)--> host --(sum over the ranks)--> host --(copy, event)--> device

and all chunks do so behind one another: while one is copied out, the one before is summed and the one before that
copied back. The host looks at the events when it is called (`poll`, from the hooks of backward); only `wait` waits, for
the last chunks. Chunks are handed to the host transport in the order of start on every rank.
"""

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ddp.transport import headers
from ddp.transport.base import Transport
from ddp.transport.cuda.common import CudaBuffer, CudaTransport, device_zeros
from engine import device
from engine.cuda.streams import has_passed
from engine.memory.backend import require_cupy

CHUNK_BYTES = 1 << 22


_COPYING_OUT, _SUMMING, _COPIED_BACK = range(3)


class _Chunk:
    """A part of a buffer's arrays, and the host memory it travels through."""

    __slots__ = ("__weakref__", "array", "copied", "host", "locked", "stage")

    def __init__(self, array: Any, host: Any) -> None:
        self.array = array
        self.host = host  # a buffer of the host transport
        self.copied = require_cupy().cuda.Event(disable_timing=True)  # the last copy, out or back
        self.locked = _page_locked(host.array, self)  # its memory, or what is copied to and from there
        self.stage = _COPIED_BACK


class StagedTransport(CudaTransport):
    """See `ddp.transport.base.Transport`. inner: the host transport, which belongs to this one from now on."""

    name = "staged"

    def __init__(self, inner: Transport, where: device) -> None:
        super().__init__(where, inner.rank, inner.size)
        self.inner = inner
        self.progress = f"{inner.progress}, over {inner.name}"
        with self._on_device:
            self._back = require_cupy().cuda.Stream(non_blocking=True)
        self._leaving: deque[tuple[CudaBuffer, _Chunk]] = deque()  # in the order of start: not yet summed over ranks

    def _allocate(self, count: int, dtype: np.dtype[Any], header: int) -> CudaBuffer:
        array = device_zeros(count, dtype)
        length = CHUNK_BYTES // dtype.itemsize
        chunks = []
        for begin in range(0, count, length) or (0,):
            part = slice(begin, min(begin + length, count))
            # The header travels with the first chunk, and with each one the weight that its mean needs.
            host = self.inner.allocate(part.stop - part.start, dtype, header if begin == 0 else min(header, 1))
            chunks.append(_Chunk(array[part], host))
        buffer = CudaBuffer(array, chunks[0].host.header)
        buffer.work = chunks
        return buffer

    def _begin(self, buffer: CudaBuffer) -> None:
        if buffer.array.size:
            self._stream.wait_event(buffer.done)  # what was copied back before has left the host memory
        for place, chunk in enumerate(buffer.work):
            chunk.stage = _COPYING_OUT
            if place and buffer.header.size:
                headers.write_weight(chunk.host.header, *headers.weights([buffer.header]))
            if chunk.array.size:
                chunk.array.data.copy_to_host_async(chunk.locked.ctypes.data, chunk.array.nbytes, self._stream)
                chunk.copied.record(self._stream)
            self._leaving.append((buffer, chunk))

    def _poll(self) -> None:
        while self._leaving:
            buffer, chunk = self._leaving[0]
            if chunk.array.size and not has_passed(chunk.copied):
                break  # later chunks are summed later, on every rank
            self._leaving.popleft()
            if chunk.locked is not chunk.host.array:
                chunk.host.array[:] = chunk.locked
            self.inner.start(chunk.host, buffer.divisor)
            chunk.stage = _SUMMING
        self.inner.poll()
        super()._poll()

    def _advance(self, buffer: CudaBuffer) -> bool:
        over = True
        for chunk in buffer.work:
            if chunk.stage == _SUMMING and self.inner.is_done(chunk.host):
                self.inner.wait(chunk.host)
                self._copy_back(chunk)
            over = over and chunk.stage == _COPIED_BACK
        if over and buffer.array.size:
            buffer.done.record(self._back)
        return over

    def _copy_back(self, chunk: _Chunk) -> None:
        if chunk.array.size:
            if chunk.locked is not chunk.host.array:
                chunk.locked[:] = chunk.host.array
            chunk.array.data.copy_from_host_async(chunk.locked.ctypes.data, chunk.array.nbytes, self._back)
            chunk.copied.record(self._back)
        chunk.stage = _COPIED_BACK

    def independent(self) -> "StagedTransport":
        return StagedTransport(self.inner.independent(), self.device)

    def _leave(self) -> None:
        self.inner.close()


def _page_locked(array: NDArray[Any], owner: _Chunk) -> NDArray[Any]:
    """The array itself with its memory page-locked as long as `owner` lives; where that cannot be, another one like it.

    It cannot where its pages are not its own, as those of a small private array. A copy may be under way when nobody
    holds the owner any more: the memory stays until that has run.
    """
    if not array.size:
        return array
    cuda = require_cupy().cuda
    try:
        cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
    except cuda.runtime.CUDARuntimeError:
        array = np.frombuffer(cuda.alloc_pinned_memory(array.nbytes), array.dtype, array.size)
        finalize(owner, _let_go, array, owner.copied, None).atexit = False
        return array
    finalize(owner, _let_go, array, owner.copied, cuda.runtime.hostUnregister).atexit = False
    return array


def _let_go(array: NDArray[Any], copied: Any, unregister: "Callable[[int], None] | None") -> None:
    copied.synchronize()
    if unregister is not None:
        unregister(array.ctypes.data)
