"""Process groups: the world, and groups of some of its ranks."""

from ddp.groups.group import (
    describe,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_local_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    resolve,
)
from ddp.groups.process_group import ProcessGroup
from ddp.groups.subgroups import GroupMember, new_group, new_subgroups, new_subgroups_by_enumeration

__all__ = [
    "GroupMember",
    "ProcessGroup",
    "describe",
    "destroy_process_group",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_local_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_initialized",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "resolve",
]
