"""In place of `cupy.cuda.nccl`, on the CPU driver: sends, receives and all-gathers of device memory, over MPI.

As in NCCL, all ranks make the same calls in the same order, and what is between `groupStart` and `groupEnd` is one
call. A rank's work runs when it is its stream's turn, which is at once: a group waits for the other ranks. It is not
captured. Two ranks on one device are refused.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

from cupy.cuda import runtime

from tests import cuda_driver

available = True
NCCL_INT8, NCCL_UINT8 = 0, 1
_numbers = itertools.count(1)
_Post = Callable[[], list[Any]]
_group: list[tuple[_Post, int]] | None = None


class NcclError(RuntimeError):
    """`cupy_backends.cuda.libs.nccl.NcclError`."""


def get_version() -> int:
    """Of NCCL."""
    return 22503


def get_unique_id() -> tuple[int, ...]:
    """Of a communicator."""
    return (next(_numbers), *range(127))


def groupStart() -> None:
    """Calls until `groupEnd` are one."""
    global _group
    assert _group is None, "NCCL: groups are not nested here"
    _group = []


def groupEnd() -> None:
    """Does what was called since `groupStart`."""
    global _group
    assert _group is not None, "NCCL: groupEnd without groupStart"
    posted, _group = _group, None
    _queue(posted)


class NcclCommunicator:
    """`cupy.cuda.nccl.NcclCommunicator`."""

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:
        from mpi4py import MPI

        assert isinstance(commId, tuple)
        self._comm = MPI.COMM_WORLD.Dup()
        assert (self._comm.size, self._comm.rank) == (ndev, rank), "the stand-in for NCCL serves the whole world"
        if len(set(self._comm.allgather(runtime.getDevice()))) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage")
        self._device = runtime.getDevice()
        self._destroyed = False

    def device_id(self) -> int:
        """The device's number."""
        return self._device

    def size(self) -> int:
        """The number of ranks."""
        return self._comm.size

    def destroy(self) -> None:
        """Ends it."""
        assert not self._destroyed, "NCCL: destroyed twice"
        self._destroyed = True
        self._comm.Free()

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Bytes to another rank."""
        _call(lambda: [self._comm.Isend(_memory(sendbuf, count, write=False), peer)], stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Bytes from another rank."""
        _call(lambda: [self._comm.Irecv(_memory(recvbuf, count, write=True), peer)], stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        """Bytes of each rank to all."""

        def post() -> list[Any]:
            own = bytes(_memory(sendbuf, count, write=False))  # it may lie in what is written
            return [self._comm.Iallgather(own, _memory(recvbuf, count * self._comm.size, write=True))]

        _call(post, stream)


def _memory(address: int, size: int, write: bool) -> Any:
    """Device memory for MPI; the access is the stream's."""
    cuda_driver.driver().driver_touch(ctypes.c_void_p(address), ctypes.c_size_t(size), int(write))
    return (ctypes.c_char * size).from_address(address)


def _call(post: _Post, stream: int) -> None:
    if _group is None:
        _queue([(post, stream)])
    else:
        _group.append((post, stream))


def _queue(calls: list[tuple[_Post, int]]) -> None:
    requests: list[Any] = []
    for post, stream in calls:
        runtime._launchHostFuncUnmanaged(stream, (lambda post: requests.extend(post()), post))
    assert len(requests) == len(calls), "the stand-in for NCCL is not captured"
    for request in requests:
        request.Wait()
