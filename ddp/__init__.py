"""Distributed data parallel training over MPI, in torch.distributed's names.

Read in this order: reference (the oracle), buckets (planning), gathering, reducer, parallel, then transport/base and
transport/shared.
"""

from ddp.collectives import ReduceOp as ReduceOp
from ddp.collectives import Work as Work
from ddp.collectives import all_gather as all_gather
from ddp.collectives import all_gather_object as all_gather_object
from ddp.collectives import all_reduce as all_reduce
from ddp.collectives import barrier as barrier
from ddp.collectives import broadcast as broadcast
from ddp.collectives import broadcast_object_list as broadcast_object_list
from ddp.collectives import gather as gather
from ddp.collectives import recv as recv
from ddp.collectives import reduce as reduce
from ddp.collectives import reduce_scatter as reduce_scatter
from ddp.collectives import scatter as scatter
from ddp.collectives import send as send
from ddp.futures import Future as Future
from ddp.group import ProcessGroup as ProcessGroup
from ddp.group import describe as describe
from ddp.group import destroy_process_group as destroy_process_group
from ddp.group import get_backend as get_backend
from ddp.group import get_local_rank as get_local_rank
from ddp.group import get_rank as get_rank
from ddp.group import get_world_size as get_world_size
from ddp.group import init_process_group as init_process_group
from ddp.group import is_available as is_available
from ddp.group import is_initialized as is_initialized
from ddp.hooks import GradBucket as GradBucket
from ddp.parallel import DistributedDataParallel as DistributedDataParallel
from ddp.sampler import DistributedSampler as DistributedSampler
from ddp.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
