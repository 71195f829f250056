"""Puts names of this package where PyTorch has them, for code that says `torch.nn.parallel.DistributedDataParallel`."""

import sys

from ddp import sampler
from ddp.parallel import DistributedDataParallel
from ddp.sampler import DistributedSampler
from ddp.sync_batch_norm import SyncBatchNorm
from engine.absent import provide

provide("engine.distributed", sys.modules["ddp"])
provide("engine.nn.SyncBatchNorm", SyncBatchNorm)
provide("engine.nn.parallel.DistributedDataParallel", DistributedDataParallel)
provide("engine.data.distributed", sampler)
provide("engine.data.DistributedSampler", DistributedSampler)
