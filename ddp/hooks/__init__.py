"""Communication hooks: what is done with a bucket of gradients instead of averaging it as it is.

A hook is `hook(state, bucket) -> Future[Tensor]`; `DistributedDataParallel.register_comm_hook` puts it to work. It is
called in the same order on every rank, as soon as a bucket is full. The tensor has the elements of `bucket.buffer()`
and takes their place; dividing by the number of ranks is up to the hook. `bucket.average()` and `bucket.mean(...)` do
so, and respect the weights of ranks.

    def clipped(state, bucket):  # a user's hook
        bucket.buffer().clamp_(-1, 1)
        return bucket.average()

    net.register_comm_hook(None, clipped)

The names are those of torch.distributed.algorithms.ddp_comm_hooks. Read in this order: bucket, half, powersgd,
gathered, post_local_sgd.
"""

from ddp.hooks.bucket import GradBucket as GradBucket
from ddp.hooks.bucket import Hook as Hook
from ddp.hooks.bucket import check_hook as check_hook
from ddp.hooks.gathered import TopKState as TopKState
from ddp.hooks.gathered import quantization_perchannel_hook as quantization_perchannel_hook
from ddp.hooks.gathered import quantization_pertensor_hook as quantization_pertensor_hook
from ddp.hooks.gathered import topk_hook as topk_hook
from ddp.hooks.half import allreduce_hook as allreduce_hook
from ddp.hooks.half import bf16_compress_hook as bf16_compress_hook
from ddp.hooks.half import bf16_compress_wrapper as bf16_compress_wrapper
from ddp.hooks.half import fp16_compress_hook as fp16_compress_hook
from ddp.hooks.half import fp16_compress_wrapper as fp16_compress_wrapper
from ddp.hooks.half import noop_hook as noop_hook
from ddp.hooks.post_local_sgd import PostLocalSGDState as PostLocalSGDState
from ddp.hooks.post_local_sgd import post_localSGD_hook as post_localSGD_hook
from ddp.hooks.powersgd import PowerSGDState as PowerSGDState
from ddp.hooks.powersgd import batched_powerSGD_hook as batched_powerSGD_hook
from ddp.hooks.powersgd import powerSGD_hook as powerSGD_hook
