"""Groups of some of the ranks: making them, and the names under which PyTorch's scripts find the world."""

import datetime
from collections.abc import Sequence
from typing import Any

from ddp import losses
from ddp.execution.calls import Call
from ddp.execution.collective import run
from ddp.groups.group import NON_GROUP_MEMBER, resolve, seconds_of
from ddp.groups.process_group import ProcessGroup
from ddp.watching.progress import Meeting, channels
from ddp.world.backends import check_backend
from ddp.world.bootstrap import default_world


class _GroupMember(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The default group, None before `init_process_group`."""
        from ddp.groups import group

        return group._default


class GroupMember(metaclass=_GroupMember):
    """`GroupMember.WORLD` is the default group; `NON_GROUP_MEMBER` what `new_group` gives to those outside."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: datetime.timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> ProcessGroup:
    """Collective: a group of these ranks (numbers in the world), by default all.

    Every rank of the world calls it with the same ranks, in the group or not (with `use_local_synchronization` only
    those in it). Their numbers in the group follow the order of `ranks`, which is sorted unless `sort_ranks` is False.
    A rank outside gets `GroupMember.NON_GROUP_MEMBER`. backend, pg_options and device_id have no meaning here; the
    transport is that of the default group if that was named.

    Raises: ValueError for ranks that are not in the world or come twice; and, on every rank, where the ranks differ
    between the callers.
    """
    world = resolve(None)
    losses.refuse("a group of some of the ranks", "leave out new_group")
    check_backend("new_group", backend)
    numbers = tuple(world.ranks if ranks is None else sorted(ranks) if sort_ranks else ranks)
    if not numbers:
        raise ValueError("new_group: expected at least one rank")
    for number in numbers:
        if number not in world.ranks:
            raise ValueError(
                "The new group's rank should be within the world_size set by init_process_group: "
                f"rank {number} of {world.size()}"
            )
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"new_group: ranks come twice in {list(numbers)}")
    seconds = seconds_of("new_group", timeout, world.timeout)
    if not use_local_synchronization:
        run(world, Call("new_group", (("ranks", numbers),)))
    count = world.made[numbers] = world.made.get(numbers, 0) + 1
    if world.rank not in numbers:
        world.last_without = numbers
        return NON_GROUP_MEMBER
    comm = None
    if world.comm is not None:
        everybody = world.comm.Get_group()
        chosen = everybody.Incl(numbers)
        label = f"new_group({list(numbers)})"
        with Meeting(channels.get(f"{label} of {world.name}") or world.subchannel(label, numbers), label):
            comm = world.comm.Create_group(chosen)
        chosen.Free()
        everybody.Free()
    name = f"group {count} of ranks {list(numbers)}" + (f" ({group_desc})" if group_desc else "")
    made = ProcessGroup(numbers.index(world.rank), numbers, comm, world.transport_name, timeout=seconds, name=name)
    world.subgroups.append(made)
    return made


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: datetime.timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup, list[ProcessGroup]]:
    """Collective: cuts a group, by default the world, into groups of consecutive ranks, by default one a node.

    Gives this rank's, and all of them. Other ranks may do the same with other groups at the same time.
    Raises ValueError when the ranks cannot be dealt evenly.
    """
    world = resolve(group)
    size = default_world().local_size if group_size is None else group_size
    if size <= 0:
        raise ValueError(f"The arg 'group_size' ({size}) must be positive")
    if world.size() < size:
        raise ValueError(f"The arg 'group_size' ({size}) must not exceed the world size ({world.size()})")
    if world.size() % size:
        raise ValueError(f"The world size ({world.size()}) must be divisible by group_size ({size})")
    lists = [list(world.ranks[begin : begin + size]) for begin in range(0, world.size(), size)]
    run(world, Call("new_subgroups", (("group_size", size),)))
    made = [
        new_group(ranks, timeout, backend, pg_options, use_local_synchronization=True, group_desc=group_desc)
        for ranks in lists
    ]
    return made[world.rank // size], made


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: datetime.timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[ProcessGroup]]:
    """Collective: a group for each list of ranks; this rank's (None if it is in none), and all of them.

    Raises ValueError for an empty list, or a rank in two of them.
    """
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    numbers = [number for ranks in ranks_per_subgroup_list for number in ranks]
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"new_subgroups_by_enumeration: a rank is in two groups: {ranks_per_subgroup_list}")
    made = [new_group(ranks, timeout, backend, pg_options, group_desc=group_desc) for ranks in ranks_per_subgroup_list]
    own = [group for group in made if group is not NON_GROUP_MEMBER]
    return (own[0] if own else None), made
