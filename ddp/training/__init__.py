"""What a training loop is given: the wrapper, samplers, optimizers and layers that know of ranks."""

from ddp.training.divergence import verify_replicas
from ddp.training.hook_types import BuiltinCommHookType, DDPCommHookType, register_ddp_comm_hook
from ddp.training.local_sgd import (
    HierarchicalModelAverager,
    PeriodicModelAverager,
    PostLocalSGDOptimizer,
    average_parameters,
)
from ddp.training.overflow import agree_on_overflow
from ddp.training.overlapped_optimizer import step_in_backward
from ddp.training.parallel import DistributedDataParallel
from ddp.training.sampler import DistributedSampler, UnrepeatedDistributedSampler
from ddp.training.sync_batch_norm import SyncBatchNorm
from ddp.training.uneven_batches import uneven
from ddp.training.zero import ZeroRedundancyOptimizer

__all__ = [
    "BuiltinCommHookType",
    "DDPCommHookType",
    "DistributedDataParallel",
    "DistributedSampler",
    "HierarchicalModelAverager",
    "PeriodicModelAverager",
    "PostLocalSGDOptimizer",
    "SyncBatchNorm",
    "UnrepeatedDistributedSampler",
    "ZeroRedundancyOptimizer",
    "agree_on_overflow",
    "average_parameters",
    "register_ddp_comm_hook",
    "step_in_backward",
    "uneven",
    "verify_replicas",
]
