"""Distributed data parallel training over MPI, in torch.distributed's names.

Read in this order: reference (the oracle), buckets (planning), gathering, reducer, parallel, then transport/base and
transport/shared.
"""

from types import ModuleType as _ModuleType

from ddp import nn as nn
from ddp import places as _places  # noqa: F401
from ddp.backends import Backend as Backend
from ddp.backends import DebugLevel as DebugLevel
from ddp.backends import get_debug_level as get_debug_level
from ddp.backends import get_default_backend_for_device as get_default_backend_for_device
from ddp.backends import is_available as is_available
from ddp.backends import is_backend_available as is_backend_available
from ddp.backends import is_gloo_available as is_gloo_available
from ddp.backends import is_mpi_available as is_mpi_available
from ddp.backends import is_nccl_available as is_nccl_available
from ddp.backends import is_torchelastic_launched as is_torchelastic_launched
from ddp.coalesced import all_gather_coalesced as all_gather_coalesced
from ddp.coalesced import all_reduce_coalesced as all_reduce_coalesced
from ddp.collectives import all_reduce as all_reduce
from ddp.collectives import barrier as barrier
from ddp.collectives import broadcast as broadcast
from ddp.collectives import reduce as reduce
from ddp.collectives import reduce_scatter as reduce_scatter
from ddp.collectives import reduce_scatter_tensor as reduce_scatter_tensor
from ddp.divergence import verify_replicas as verify_replicas
from ddp.futures import Future as Future
from ddp.group import ProcessGroup as ProcessGroup
from ddp.group import describe as describe
from ddp.group import destroy_process_group as destroy_process_group
from ddp.group import get_backend as get_backend
from ddp.group import get_global_rank as get_global_rank
from ddp.group import get_group_rank as get_group_rank
from ddp.group import get_local_rank as get_local_rank
from ddp.group import get_node_local_rank as get_node_local_rank
from ddp.group import get_process_group_ranks as get_process_group_ranks
from ddp.group import get_rank as get_rank
from ddp.group import get_world_size as get_world_size
from ddp.group import init_process_group as init_process_group
from ddp.group import is_initialized as is_initialized
from ddp.hook_types import BuiltinCommHookType as BuiltinCommHookType
from ddp.hooks import GradBucket as GradBucket
from ddp.local_sgd import HierarchicalModelAverager as HierarchicalModelAverager
from ddp.local_sgd import PeriodicModelAverager as PeriodicModelAverager
from ddp.local_sgd import PostLocalSGDOptimizer as PostLocalSGDOptimizer
from ddp.monitored_barrier import monitored_barrier as monitored_barrier
from ddp.object_collectives import all_gather_object as all_gather_object
from ddp.object_collectives import broadcast_object_list as broadcast_object_list
from ddp.object_collectives import gather_object as gather_object
from ddp.object_collectives import recv_object_list as recv_object_list
from ddp.object_collectives import scatter_object_list as scatter_object_list
from ddp.object_collectives import send_object_list as send_object_list
from ddp.overflow import agree_on_overflow as agree_on_overflow
from ddp.overlapped_optimizer import step_in_backward as step_in_backward
from ddp.parallel import DistributedDataParallel as DistributedDataParallel
from ddp.point_to_point import P2POp as P2POp
from ddp.point_to_point import batch_isend_irecv as batch_isend_irecv
from ddp.point_to_point import irecv as irecv
from ddp.point_to_point import isend as isend
from ddp.point_to_point import recv as recv
from ddp.point_to_point import send as send
from ddp.redistribution import all_gather as all_gather
from ddp.redistribution import all_gather_into_tensor as all_gather_into_tensor
from ddp.redistribution import all_to_all as all_to_all
from ddp.redistribution import all_to_all_single as all_to_all_single
from ddp.redistribution import gather as gather
from ddp.redistribution import scatter as scatter
from ddp.reductions import ReduceOp as ReduceOp
from ddp.reductions import _make_nccl_premul_sum as _make_nccl_premul_sum
from ddp.sampler import DistributedSampler as DistributedSampler
from ddp.sampler import UnrepeatedDistributedSampler as UnrepeatedDistributedSampler
from ddp.subgroups import GroupMember as GroupMember
from ddp.subgroups import new_group as new_group
from ddp.subgroups import new_subgroups as new_subgroups
from ddp.subgroups import new_subgroups_by_enumeration as new_subgroups_by_enumeration
from ddp.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from ddp.timeline import timeline as timeline
from ddp.uneven_batches import uneven as uneven
from ddp.work import Work as Work
from ddp.zero import ZeroRedundancyOptimizer as ZeroRedundancyOptimizer
from engine.tracebacks import hide_frames_of as _hide_frames_of

_hide_frames_of(__file__)

_MODULES = frozenset({"algorithms", "distributed", "elastic", "hooks", "nn", "optim"})


def __dir__() -> list[str]:
    """What users are to see: not the files this package consists of."""
    return sorted(
        name
        for name, value in globals().items()
        if name.startswith("__") or name in _MODULES or not (name.startswith("_") or isinstance(value, _ModuleType))
    )
