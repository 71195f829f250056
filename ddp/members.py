"""Which rank is meant: arguments of collectives that name a group and ranks in it."""

import warnings

from ddp import bootstrap
from ddp.group import NON_GROUP_MEMBER, ProcessGroup, resolve


def members_of(name: str, group: ProcessGroup | None) -> ProcessGroup | None:
    """The group, or None with a warning where this rank is not in it and has nothing to do, as PyTorch does."""
    if group is NON_GROUP_MEMBER:
        warnings.warn(
            f"Running {name} on global rank {bootstrap.default_world().rank} which does not belong to the given group.",
            stacklevel=3,
        )
        return None
    return resolve(group)


def number_in_group(
    name: str, members: ProcessGroup, what: str, global_rank: int | None, group_rank: int | None, default: int | None
) -> int:
    """The number in the group of the rank that was named by its number in the world, or by that in the group.

    what: the argument, "src" or "dst". Raises ValueError when both or none are given and there is no default, or the
    group has no such rank.
    """
    if global_rank is not None and group_rank is not None:
        raise ValueError(f"{name}: Can't specify both group_{what} and {what}")
    if group_rank is not None:
        if not 0 <= group_rank < members.size():
            raise ValueError(f"{name}: group_{what}={group_rank}: the group has ranks 0 to {members.size() - 1}")
        return group_rank
    if global_rank is None:
        global_rank = default
    if global_rank is None:
        raise ValueError(f"{name}: Must specify {what} or group_{what}")
    if global_rank not in members.ranks:
        raise ValueError(f"{name}: rank {global_rank} is not in the group; expected one of {list(members.ranks)}")
    return members.ranks.index(global_rank)
