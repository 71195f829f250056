"""The default group, which is the world: entering and leaving it, and what scripts ask of a group."""

import datetime
import os
from typing import TYPE_CHECKING, Any, cast

from ddp import losses
from ddp.groups.process_group import ProcessGroup
from ddp.transport import CUDA_ONLY, TRANSPORTS
from ddp.watching import watchdog
from ddp.watching.progress import DEFAULT_TIMEOUT, channels
from ddp.watching.starting import limited
from ddp.world import bootstrap, torchrun_variables
from ddp.world.backends import check_backend
from engine.errors.absent import provide
from engine.kernels import waiting

if TYPE_CHECKING:
    from mpi4py import MPI

    from ddp.execution.lines import Lines

_default: ProcessGroup | None = None

NON_GROUP_MEMBER: Any = -100
"""What `new_group` gives to a rank that is not in it; PyTorch's number."""


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: datetime.timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    *,
    comm: "MPI.Intracomm | None" = None,
    transport: str | None = None,
    host_timeout: datetime.timedelta | None = None,
    lost_host: str = "end",
) -> None:
    """Enters the world of MPI ranks; a script that no launcher started is a world of one and needs no MPI.

    backend, init_method, world_size and rank exist because torch.distributed has them: the backend is MPI whichever of
    "gloo", "nccl" and "mpi" is asked for ("cpu:gloo,cuda:nccl" too), and MPI knows the ranks by itself. A `world_size`
    or `rank` that contradicts MPI's is an error, and so are `store` and `pg_options`; `group_name` and `device_id`
    change nothing. comm: a communicator of mpi4py whose ranks are the world, instead of all that MPI has; its ranks
    call this, the others go on with something else. It is duplicated, and MPI may have been started by anybody (an
    exception that nobody catches ends the whole job all the same). timeout: a rank that has waited so long for the
    others ends the job, by default after 30 minutes; long before, it says who is late and where
    (`ddp.watching.watchdog`). transport: how gradients are summed (`ddp.transport.TRANSPORTS`, and for device memory
    `ddp.transport.cuda.CUDA_TRANSPORTS`); chosen by itself when not given; with "mpi" the collectives of
    `ddp.collectives` go through MPI on one node, too. host_timeout, lost_host: when nothing was
    heard of a host for so long, by default a minute, while ranks wait for it, that is said, with its name, and the job
    is ended, or goes on where lost_host is "report".

    Raises: ValueError for an unknown backend or transport, contradicting numbers, or a second call; RuntimeError when
    MPI does not see the ranks that the launcher started (an mpirun of another MPI).
    """
    global _default
    check_backend("init_process_group", backend)
    if transport is not None and transport not in TRANSPORTS and transport not in CUDA_ONLY:
        raise ValueError(
            f"init_process_group: unknown transport {transport!r}, expected one of "
            f"{', '.join((*TRANSPORTS, *CUDA_ONLY))}"
        )
    if store is not None or pg_options is not None:
        raise ValueError("init_process_group: store and pg_options have no meaning here: MPI connects the ranks")
    if lost_host not in ("end", "report"):
        raise ValueError(f"init_process_group: expected lost_host 'end' or 'report', got {lost_host!r}")
    seconds = seconds_of("init_process_group", timeout)
    lost = watchdog.Lost(seconds_of("init_process_group", host_timeout, 60.0), lost_host == "end")
    watchdog.come_back()
    with limited(seconds, bootstrap.launched_ranks(comm)):
        world = bootstrap.start_world(comm)
        for what, given, actual in (("world_size", world_size, world.size), ("rank", rank, world.rank)):
            if given not in (-1, actual):
                bootstrap.stop_world()
                watchdog.leave()
                raise ValueError(f"init_process_group: {what}={given} was given, but MPI says {actual}; leave it out")
        torchrun_variables.set_from_world(os.environ, world)
        watchdog.start(world.comm if world.size > 1 else None, seconds, lost)
    _default = ProcessGroup(
        world.rank, tuple(range(world.size)), world.comm, transport, timeout=seconds, name="the default group"
    )
    _tell_of_rank(_default)


def _tell_of_rank(group: ProcessGroup) -> None:
    """What does not ask the default group for its number is told."""
    waiting.speak(group.rank == 0)
    provide("engine.data.worker.first", (_enter_worker, (group.rank, group.ranks)))


def leave_behind(comm: "MPI.Intracomm") -> None:
    """Collective over `comm`, the ranks that go on: the default group is theirs, and nothing of the lost ones is in it.
    The object stays, for those that hold it.
    """
    assert _default is not None
    world = bootstrap.enter_anew(comm)
    torchrun_variables.set_from_world(os.environ, world)
    channels.clear()  # what was contributed counts no more: ranks were at different places
    watchdog.start_anew(comm)
    _default.renew(comm)
    _tell_of_rank(_default)


class _NoRank:
    """In the place of communicators in a DataLoader's worker."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(
            "a DataLoader's worker process is no rank: it knows get_rank() and get_world_size() of the rank that "
            "started it, and takes part in no collective"
        )


def _enter_worker(rank: int, ranks: tuple[int, ...]) -> None:
    """In a DataLoader's worker that was not forked: datasets ask for the rank, to read its share."""
    global _default
    _default = ProcessGroup(rank, ranks, None, name="the default group")
    _default.comm = cast("MPI.Intracomm", _NoRank())
    _default.lines = cast("Lines", _NoRank())


def seconds_of(name: str, timeout: datetime.timedelta | None, default: float = DEFAULT_TIMEOUT) -> float:
    """A timeout in seconds, the default one for None. Raises TypeError, or ValueError unless it is positive."""
    if timeout is None:
        return default
    if not isinstance(timeout, datetime.timedelta):
        raise TypeError(f"{name}: expected timeout as a datetime.timedelta, got {type(timeout).__name__}")
    if timeout.total_seconds() <= 0:
        raise ValueError(f"{name}: expected a positive timeout, got {timeout}")
    return timeout.total_seconds()


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Leaves the world, with all groups in it, or closes one group; where this rank is not in that, nothing happens.

    Every rank calls it, but it waits for nobody.
    """
    global _default
    if group is NON_GROUP_MEMBER:
        return
    leaving = resolve(group)
    if leaving is not _default:
        leaving.close()
        leaving.forget_channels()
        if _default is not None and leaving in _default.subgroups:
            _default.subgroups.remove(leaving)
        return
    for closing in (*leaving.subgroups, leaving):
        try:
            closing.close()
        except RuntimeError as error:
            if not losses.is_behind(error):  # with a rank that was lost at the very end
                raise
    _default = None
    provide("engine.data.worker.first", None)
    watchdog.leave()  # with what this rank contributed, for those that are still at the end of the last calls
    for closed in (*leaving.subgroups, leaving):
        closed.forget_channels()
    leaving.subgroups.clear()
    bootstrap.forget_world()


def resolve(group: ProcessGroup | None) -> ProcessGroup:
    """The given group, or the default one.

    Raises: ValueError when `init_process_group` was not called, or this rank is not in the group; TypeError for
    something else.
    """
    if isinstance(group, ProcessGroup):
        return group
    if group is NON_GROUP_MEMBER:
        raise ValueError("Invalid process group specified: this rank is not in it")
    if group is not None:
        raise TypeError(f"expected a ProcessGroup, got {type(group).__name__}")
    if _default is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return _default


def is_initialized() -> bool:
    """Whether `init_process_group` was called."""
    return _default is not None


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's number in the group; -1 where it is not in it."""
    return -1 if group is NON_GROUP_MEMBER else resolve(group).rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Number of ranks in the group; -1 where this process is not in it."""
    return -1 if group is NON_GROUP_MEMBER else resolve(group).size()


def get_local_rank() -> int:
    """This process's number among those on the same node."""
    return bootstrap.default_world().local_rank


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """The same, in PyTorch's name; before `init_process_group` the fallback, if any."""
    if fallback_rank is not None and not bootstrap.is_started():
        return fallback_rank
    return get_local_rank()


def get_process_group_ranks(group: ProcessGroup | None) -> list[int]:
    """The numbers in the world of the group's ranks."""
    return list(resolve(group).ranks)


def get_global_rank(group: ProcessGroup | None, group_rank: int) -> int:
    """The number in the world of rank `group_rank` of the group. Raises ValueError when there is none."""
    found = resolve(group)
    if not 0 <= group_rank < found.size():
        raise ValueError(f"Group rank {group_rank} is not part of group {list(found.ranks)}")
    return found.ranks[group_rank]


def get_group_rank(group: ProcessGroup | None, global_rank: int) -> int:
    """The number in the group of rank `global_rank` of the world. Raises ValueError when it is not in it.

    `NON_GROUP_MEMBER` stands for the last group that was made without this rank, as in PyTorch.
    """
    ranks = resolve(None).last_without if group is NON_GROUP_MEMBER else resolve(group).ranks
    if global_rank not in ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {list(ranks)}")
    return ranks.index(global_rank)


def get_backend(group: ProcessGroup | None = None) -> str:
    """Always "mpi"."""
    resolve(group)
    return "mpi"


def describe(group: ProcessGroup | None = None) -> dict[str, Any]:
    """What was chosen, for logs: rank, size, transport, and what moves its sums on (`ddp.transport.background`).

    These two are None until the first model is wrapped, which chooses; the sums of a model are moved on by what its
    first steps chose. Where device memory was summed, also over which transport on each device, and why not over a
    better one.
    """
    found = resolve(group)
    transport = found._transport
    on_devices = {str(device): used.name for device, used in found._on_devices.items()}
    return {
        "rank": found.rank,
        "world_size": found.size(),
        "transport": transport and transport.name,
        "progress": transport and transport.progress,
        **({"on_devices": on_devices, "not_used": found.refused} if on_devices else {}),
    }


def __getattr__(name: str) -> Any:
    """`ddp.groups.group.WORLD`: the default group, None before `init_process_group`."""
    if name == "WORLD":
        return _default
    raise AttributeError(f"module 'ddp.groups.group' has no attribute {name!r}")
