"""Sums of device memory over the ranks: the registry of transports for buckets on a GPU, and the choice between them.

All keep the rules of `ddp.transport.base`, with what `ddp.transport.cuda.common` adds for device memory. Read in this
order: common, staged, ipc, nccl, gpu_mpi, probe.
"""

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddp.transport.base import Transport, required
from ddp.transport.check import check_transport

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.transport.cuda.common import CudaTransport
    from engine import device

    Make = Callable[["MPI.Intracomm | None", device, str | None], "CudaTransport"]

__all__ = ["CUDA_TRANSPORTS", "choose_cuda_transport"]


def _loopback(comm: "MPI.Intracomm | None", where: "device", inner: str | None) -> "CudaTransport":
    if comm is not None and comm.size > 1:
        raise RuntimeError(f"transport loopback: it serves one rank, got {comm.size}; use 'cuda_ipc' or 'staged'")
    from ddp.transport.cuda.common import LoopbackCudaTransport

    return LoopbackCudaTransport(where)


def _staged(comm: "MPI.Intracomm | None", where: "device", inner: str | None) -> "CudaTransport":
    from ddp.transport import choose_transport
    from ddp.transport.cuda.staged import StagedTransport

    return StagedTransport(choose_transport(required("staged", comm), inner), where)


def _cuda_ipc(comm: "MPI.Intracomm | None", where: "device", inner: str | None) -> "CudaTransport":
    world = required("cuda_ipc", comm)
    from ddp.transport.cuda.ipc import IpcTransport

    return IpcTransport(world, where)


def _nccl(comm: "MPI.Intracomm | None", where: "device", inner: str | None) -> "CudaTransport":
    world = required("nccl", comm)
    from ddp.transport.cuda.nccl import NcclTransport

    return NcclTransport(world, where)


def _gpu_mpi(comm: "MPI.Intracomm | None", where: "device", inner: str | None) -> "CudaTransport":
    world = required("gpu_mpi", comm)
    from ddp.transport.cuda.gpu_mpi import GpuMpiTransport

    return GpuMpiTransport(world, where)


CUDA_TRANSPORTS: dict[str, "Make"] = {
    "loopback": _loopback,
    "cuda_ipc": _cuda_ipc,
    "nccl": _nccl,
    "gpu_mpi": _gpu_mpi,
    "staged": _staged,
}
"""By name: `make(comm, device, inner)`, with inner the host transport that `staged` is to use (None: the best one)."""


def choose_cuda_transport(
    comm: "MPI.Intracomm | None", where: "device", name: str | None = None
) -> "tuple[Transport, list[str]]":
    """Collective: the transport called `name`, or the best one, for buckets on the GPU `where`; and why no better one.

    The name of a transport of host memory means `staged` with that one in the middle. Best is the first that can serve:
    loopback for one rank; cuda_ipc on one node; nccl where every rank has a GPU of its own; gpu_mpi where a probe has
    seen this MPI send device memory; staged. It must agree with MPI's own sum. One asked for by name that cannot serve
    is a RuntimeError on every rank. One chosen automatically that turns out to fail is replaced by the next, with a
    RuntimeWarning on rank 0; one that is not there (no NCCL, several nodes) is only named in the list.
    """
    if os.environ.get("ALLSTRIDE_GPU") == "none":
        raise RuntimeError(
            f"gradients on {where}: ddprun has given no GPU to these ranks, since they are more than the GPUs; start "
            "fewer (-n), or name the GPUs that they are to share: CUDA_VISIBLE_DEVICES=0 ddprun ..."
        )
    if name is not None and name not in CUDA_TRANSPORTS:
        return _make("staged", comm, where, name), []
    if name is not None:
        return _make(name, comm, where), []
    if comm is None or comm.size == 1:
        return _make("loopback", comm, where), []
    reasons: list[str] = []
    for candidate in ("cuda_ipc", "nccl", "gpu_mpi"):
        try:
            return _make(candidate, comm, where), reasons
        except NotServed as reason:
            reasons.append(str(reason))
        except RuntimeError as error:
            reasons.append(str(error))
            if comm.rank == 0:
                warnings.warn(
                    f"transport {candidate!r} does not work here, trying the next one: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
    return _make("staged", comm, where), reasons


class NotServed(RuntimeError):
    """A transport is not meant for these ranks, or what it needs is not installed: no cause for alarm."""


def _make(name: str, comm: "MPI.Intracomm | None", where: "device", inner: str | None = None) -> "CudaTransport":
    """A transport that has passed the check. RuntimeError on every rank where any has a reason against it."""
    transport, problem, expected = None, "", True
    try:
        transport = CUDA_TRANSPORTS[name](comm, where, inner)
    except NotServed as error:
        problem = str(error)
    except RuntimeError as error:
        problem, expected = str(error), False
    found = comm.allgather((problem, expected)) if comm else [(problem, expected)]
    problems = [(text, expected) for text, expected in found if text]
    if transport is None or problems:
        raise (NotServed if all(expected for _, expected in problems) else RuntimeError)(problem or problems[0][0])
    with transport.current_device():
        check_transport(transport, comm)
    return transport
