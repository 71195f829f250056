"""Distributed data parallel training over MPI, in torch.distributed's names.

A room an idea, each importing only from those before it: transport (bytes are summed), world (MPI starts), watching
(who waits for whom), execution (from a call to its result), groups, collectives, gradients and replicas, hooks,
training (the wrapper), job (on any number of ranks), and on top timeline, bench, doctor and testing. Read
transport/base, gradients and training/parallel first.
"""

from os import environ as _environ

from ddp import hooks, nn
from ddp import torch_paths as _torch_paths  # noqa: F401
from ddp.collectives import (
    P2POp,
    ReduceOp,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    irecv,
    isend,
    monitored_barrier,
    recv,
    recv_object_list,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    scatter_object_list,
    send,
    send_object_list,
)
from ddp.collectives.reductions import _make_nccl_premul_sum as _make_nccl_premul_sum
from ddp.execution import Future, Work
from ddp.groups import (
    GroupMember,
    ProcessGroup,
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
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
)
from ddp.groups import (
    GroupMember as group,
)
from ddp.hooks import GradBucket
from ddp.job import Job, ShardSampler, digest
from ddp.timeline import timeline
from ddp.training import (
    BuiltinCommHookType,
    DistributedDataParallel,
    DistributedSampler,
    HierarchicalModelAverager,
    PeriodicModelAverager,
    PostLocalSGDOptimizer,
    SyncBatchNorm,
    UnrepeatedDistributedSampler,
    ZeroRedundancyOptimizer,
    agree_on_overflow,
    step_in_backward,
    uneven,
    verify_replicas,
)
from ddp.world import (
    Backend,
    DebugLevel,
    get_debug_level,
    get_default_backend_for_device,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
)
from ddp.world import torchrun_variables as _torchrun_variables
from engine.errors.tracebacks import hide_frames_of as _hide_frames_of

_torchrun_variables.set_from_launcher(_environ)
_hide_frames_of(__file__)

__all__ = [
    "Backend",
    "BuiltinCommHookType",
    "DebugLevel",
    "DistributedDataParallel",
    "DistributedSampler",
    "Future",
    "GradBucket",
    "GroupMember",
    "HierarchicalModelAverager",
    "Job",
    "P2POp",
    "PeriodicModelAverager",
    "PostLocalSGDOptimizer",
    "ProcessGroup",
    "ReduceOp",
    "ShardSampler",
    "SyncBatchNorm",
    "UnrepeatedDistributedSampler",
    "Work",
    "ZeroRedundancyOptimizer",
    "agree_on_overflow",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "describe",
    "destroy_process_group",
    "digest",
    "gather",
    "gather_object",
    "get_backend",
    "get_debug_level",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_local_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "hooks",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "nn",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "step_in_backward",
    "timeline",
    "uneven",
    "verify_replicas",
]

_PATHS = ("algorithms", "distributed", "elastic", "optim")  # PyTorch's, made by torch_paths


def __dir__() -> list[str]:
    """What users are to see: not the rooms this package consists of."""
    return sorted({*__all__, *_PATHS, *(name for name in globals() if name.startswith("__"))})
