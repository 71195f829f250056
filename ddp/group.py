"""Process groups: who takes part, and over which transport gradients travel. The default group is the world."""

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ddp import bootstrap
from ddp.transport import TRANSPORTS, Transport, choose_transport

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

# Scripts name PyTorch's libraries; MPI does their work here.
_BACKENDS = ("mpi", "gloo", "nccl", *TRANSPORTS)


@dataclass(slots=True)
class ProcessGroup:
    """Ranks that communicate with each other. `ranks` are their numbers in the world, in the order of the group."""

    rank: int
    ranks: tuple[int, ...]
    comm: "MPI.Intracomm | None"
    transport_name: str | None = None
    _transport: Transport | None = field(default=None, repr=False)

    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def transport(self) -> Transport:
        """How gradients are summed. The first access is collective: the transport is chosen and checked then."""
        if self._transport is None:
            self._transport = choose_transport(self.comm, self.transport_name)
        return self._transport

    def exchange(self, value: T) -> list[T]:
        """Collective: every rank's (small, picklable) value, in rank order."""
        return [value] if self.comm is None else self.comm.allgather(value)


_default: ProcessGroup | None = None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: datetime.timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    *,
    transport: str | None = None,
) -> None:
    """Enters the world of MPI ranks; a script that no launcher started is a world of one and needs no MPI.

    backend, init_method, world_size and rank exist because torch.distributed has them: the backend is MPI whichever of
    "gloo", "nccl" and "mpi" is asked for ("cpu:gloo,cuda:nccl" too), and MPI knows the ranks by itself. A `world_size`
    or `rank` that contradicts MPI's is an error. transport: how gradients are summed (`ddp.transport.TRANSPORTS`);
    chosen by itself when not given.

    Raises: ValueError for an unknown backend or transport, contradicting numbers, or a second call; RuntimeError when
    MPI does not see the ranks that the launcher started (an mpirun of another MPI).
    """
    global _default
    asked = () if backend is None else [part.rpartition(":")[2] for part in backend.lower().split(",")]
    if any(name not in _BACKENDS for name in asked):
        raise ValueError(
            f"init_process_group: unknown backend {backend!r}; "
            "this package communicates over MPI: leave it out or pass 'mpi' ('gloo' and 'nccl' mean the same)"
        )
    if transport is not None and transport not in TRANSPORTS:
        raise ValueError(
            f"init_process_group: unknown transport {transport!r}, expected one of {', '.join(TRANSPORTS)}"
        )
    if timeout is not None and timeout.total_seconds() <= 0:
        raise ValueError(f"init_process_group: expected a positive timeout, got {timeout}")
    world = bootstrap.start_world()
    for what, given, actual in (("world_size", world_size, world.size), ("rank", rank, world.rank)):
        if given not in (-1, actual):
            bootstrap.stop_world()
            raise ValueError(f"init_process_group: {what}={given} was given, but MPI says {actual}; leave it out")
    _default = ProcessGroup(world.rank, tuple(range(world.size)), world.comm, transport)


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Collective: leaves the world (or closes one group's transport)."""
    global _default
    leaving = resolve(group)
    if leaving._transport is not None:
        leaving._transport.close()
        leaving._transport = None
    if leaving is _default:
        _default = None
        bootstrap.stop_world()


def resolve(group: ProcessGroup | None) -> ProcessGroup:
    """The given group, or the default one.

    Raises: ValueError when `init_process_group` was not called.
    """
    if group is not None:
        return group
    if _default is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return _default


def is_available() -> bool:
    """Always true: without MPI there is a world of one."""
    return True


def is_initialized() -> bool:
    """Whether `init_process_group` was called."""
    return _default is not None


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's number in the group."""
    return resolve(group).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Number of ranks in the group."""
    return resolve(group).size()


def get_local_rank() -> int:
    """This process's number among those on the same node."""
    return bootstrap.default_world().local_rank


def get_backend(group: ProcessGroup | None = None) -> str:
    """Always "mpi"."""
    resolve(group)
    return "mpi"


def describe(group: ProcessGroup | None = None) -> dict[str, Any]:
    """What was chosen, for logs: rank, size and transport."""
    found = resolve(group)
    return {"rank": found.rank, "world_size": found.size(), "transport": found.transport.name}
