"""How bytes are summed over the ranks of a group: the registry of transports and the choice between them.

A new transport is a module beside this one that keeps the rules of `ddp.transport.base`, and a row in `TRANSPORTS`.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddp import losses
from ddp.transport.base import ACCUMULATORS, Buffer, Transport, required
from ddp.transport.check import check_transport
from ddp.transport.loopback import LoopbackTransport
from ddp.transport.timing import SumTimes, time_sums

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "ACCUMULATORS",
    "CUDA_ONLY",
    "TRANSPORTS",
    "Buffer",
    "Transport",
    "check_transport",
    "choose_transport",
    "time_messages",
]

CUDA_ONLY = ("cuda_ipc", "nccl", "gpu_mpi", "staged")
"""Names of `ddp.transport.cuda.CUDA_TRANSPORTS`, for device memory; host memory has its best transport beside them."""


def _loopback(comm: "MPI.Intracomm | None") -> Transport:
    if comm is not None and comm.size > 1:
        raise RuntimeError(f"transport loopback: it serves one rank, got {comm.size}; use 'shared' or 'mpi'")
    return LoopbackTransport()


def _shared(comm: "MPI.Intracomm | None") -> Transport:
    world = required("shared", comm)
    from ddp.transport.shared import SharedTransport

    return SharedTransport(world)


def _mpi(comm: "MPI.Intracomm | None") -> Transport:
    world = required("mpi", comm)
    from ddp.transport.mpi import MpiTransport

    return MpiTransport(world)


def _hierarchical(comm: "MPI.Intracomm | None") -> Transport:
    world = required("hierarchical", comm)
    from ddp.transport.hierarchical import HierarchicalTransport

    return HierarchicalTransport(world)


TRANSPORTS: dict[str, Callable[["MPI.Intracomm | None"], Transport]] = {
    "loopback": _loopback,
    "shared": _shared,
    "mpi": _mpi,
    "hierarchical": _hierarchical,
}


_BY_MESSAGES = ("mpi", "hierarchical")


def choose_transport(comm: "MPI.Intracomm | None", name: str | None = None) -> Transport:
    """Collective: the transport called `name`, or the best one for the ranks of `comm` (None: one rank without MPI).

    Best is loopback for one rank, shared when all ranks are on one node, hierarchical when some are together on a node,
    else mpi. Whatever is chosen must first agree with MPI's own sum. A transport asked for by name that cannot serve,
    or that sums wrongly, is a RuntimeError on every rank; one chosen automatically is replaced by mpi, on every rank,
    with a RuntimeWarning on rank 0 that says what went wrong. ValueError: unknown name.
    """
    if name is not None and name not in TRANSPORTS:
        raise ValueError(f"unknown transport {name!r}, expected one of {', '.join(TRANSPORTS)}")
    best = name or _best(comm)
    try:
        return _make(best, comm)
    except RuntimeError as error:
        if name is not None or best in ("loopback", "mpi") or losses.is_behind(error):
            raise
        assert comm is not None
        if comm.rank == 0:
            warnings.warn(
                f"transport {best!r} does not work here, falling back to 'mpi': {error}", RuntimeWarning, stacklevel=2
            )
        return _make("mpi", comm)


def _make(name: str, comm: "MPI.Intracomm | None") -> Transport:
    """A transport that has passed the check. RuntimeError on every rank where any has a reason against it."""
    transport, problem = None, ""
    try:
        transport = TRANSPORTS[name](comm)
    except RuntimeError as error:
        problem = str(error)
    problems = [text for text in (comm.allgather(problem) if comm else [problem]) if text]
    if transport is None or problems:
        raise RuntimeError(problem or problems[0])
    check_transport(transport, comm)
    if name in _BY_MESSAGES and comm is not None and comm.size > 1:
        from ddp.transport.background import with_better_progress

        return with_better_progress(transport, comm)
    return transport


def time_messages(transport: Transport, comm: "MPI.Intracomm | None") -> SumTimes | None:
    """Collective: what a sum takes by this transport, if it sends messages; None for another, and where ranks are
    threads (`ddp.testing`), whose times mean nothing.
    """
    if transport.name not in _BY_MESSAGES or comm is None or comm.size == 1:
        return None
    from mpi4py import MPI

    return time_sums(transport, comm) if isinstance(comm, MPI.Intracomm) else None


def _best(comm: "MPI.Intracomm | None") -> str:
    if comm is None or comm.size == 1:
        return "loopback"
    from ddp.transport.nodes import count_nodes

    nodes = count_nodes(comm)
    if nodes == 1:
        return "shared"
    return "hierarchical" if nodes < comm.size else "mpi"
