"""Arguments of collectives: a group, ranks in it, and lists with a tensor for each of them."""

import warnings
from typing import Any

import engine
from ddp.collectives.wire import check_like, check_tensor
from ddp.groups.group import NON_GROUP_MEMBER, resolve
from ddp.groups.process_group import ProcessGroup
from ddp.world import bootstrap


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


def check_list(name: str, what: str, tensors: Any, members: ProcessGroup, like: engine.Tensor | None = None) -> None:
    """Raises unless it is a list of one tensor a rank, of the shape and dtype of `like`."""
    if not isinstance(tensors, list | tuple):
        raise TypeError(f"{name}: expected {what} as a list of tensors, got {type(tensors).__name__}")
    if len(tensors) != members.size():
        raise ValueError(f"{name}: expected {what} of {members.size()} tensors, got {len(tensors)}")
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, engine.Tensor) and (like is None or _is_like(tensor, like)):
            continue  # the name of an entry takes longer than to look at it
        entry = f"{name}: {what}[{index}]"
        check_tensor(entry, tensor)
        if like is not None:
            check_like(entry, tensor, tuple(like.shape), like)


def _is_like(tensor: engine.Tensor, like: engine.Tensor) -> bool:
    return tensor.dtype is like.dtype and tensor.shape == like.shape


def list_at_root(name: str, what: str, tensors: Any, members: ProcessGroup, root: int) -> Any:
    """The list of the root, an empty one elsewhere. Raises ValueError where it is given and should not be, or not."""
    if (members.rank == root) != bool(tensors):
        raise ValueError(f"{name}: {what} must be given on rank {members.ranks[root]} and only there")
    return tensors or []


def check_stacked(
    name: str, what: str, whole: engine.Tensor, part_name: str, part: engine.Tensor, members: ProcessGroup
) -> None:
    """Raises unless `whole` has room for one `part` a rank, along the first dimension or a new one before it."""
    check_tensor(name, whole)
    check_tensor(name, part)
    ranks, shape = members.size(), tuple(part.shape)
    if tuple(whole.shape) == (ranks, *shape):
        check_like(f"{name}: {what}", whole, (ranks, *shape), part)
        return
    joined = (ranks * shape[0], *shape[1:]) if shape else (ranks,)
    if whole.numel() != ranks * part.numel() or tuple(whole.shape[1:]) != joined[1:]:
        raise ValueError(
            f"{name}: expected {what} of shape {joined} or {(ranks, *shape)} for {ranks} ranks and {part_name} of "
            f"shape {shape}, got {tuple(whole.shape)}"
        )
    check_like(f"{name}: {what}", whole, joined, part)
