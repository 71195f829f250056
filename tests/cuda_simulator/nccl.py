"""`cupy.cuda.nccl` over MPI: sends, receives and all-gathers of device memory, for tests of what is built on them.

As in NCCL, all ranks make the same calls in the same order, a call returns before it is done (here it is done at once,
as all work), and what is between `groupStart` and `groupEnd` is one call. Two ranks on one device are refused.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.cuda_simulator import execution, streams

available = True
NCCL_INT8, NCCL_UINT8 = 0, 1
_numbers = itertools.count(1)


class NcclError(RuntimeError):
    """`cupy_backends.cuda.libs.nccl.NcclError`."""


def get_version() -> int:
    return 22503


def get_unique_id() -> tuple[int, ...]:
    return (next(_numbers), *range(127))


_group: list[Callable[[], Any]] | None = None


def groupStart() -> None:
    global _group
    assert _group is None, "NCCL: groups are not nested here"
    _group = []


def groupEnd() -> None:
    global _group
    assert _group is not None, "NCCL: groupEnd without groupStart"
    posted, _group = _group, None
    requests = [request for call in posted for request in call()]
    for request in requests:
        request.Wait()


class NcclCommunicator:
    """`cupy.cuda.nccl.NcclCommunicator`."""

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:
        from mpi4py import MPI

        assert isinstance(commId, tuple)
        self._comm = MPI.COMM_WORLD.Dup()
        assert (self._comm.size, self._comm.rank) == (ndev, rank), "the stand-in for NCCL serves the whole world"
        devices = self._comm.allgather(streams.current_device())
        if len(set(devices)) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")
        self._destroyed = False

    def device_id(self) -> int:
        return streams.current_device()

    def size(self) -> int:
        return self._comm.size

    def destroy(self) -> None:
        assert not self._destroyed, "NCCL: destroyed twice"
        self._destroyed = True
        self._comm.Free()

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        def post() -> list[Any]:
            return [self._comm.Isend(_host(sendbuf, count).copy(), peer)]

        _queue("ncclSend", post, (sendbuf, count), None, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        _queue("ncclRecv", lambda: [self._comm.Irecv(_host(recvbuf, count), peer)], None, (recvbuf, count), stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        def gather() -> list[Any]:
            self._comm.Allgather(_host(sendbuf, count).copy(), _host(recvbuf, count * self._comm.size))
            return []

        _queue("ncclAllGather", gather, (sendbuf, count), (recvbuf, count * self._comm.size), stream)


def _host(pointer: int, size: int) -> np.ndarray:
    return execution.host_bytes(pointer, size)


def _queue(what: str, run: Callable[[], list[Any]], reads: Any, writes: Any, stream: int) -> None:
    """Checked for races now; done now, or with its group."""
    ranges = [[execution.range_of(*each)] if each is not None else [] for each in (reads, writes)]
    execution.submit(what, lambda: None, *ranges, streams.queue_of(stream))
    if _group is not None:
        _group.append(run)
        return
    for request in run():
        request.Wait()
