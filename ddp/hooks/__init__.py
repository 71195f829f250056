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

from ddp.gradients.grad_bucket import GradBucket, Hook, check_hook
from ddp.hooks.gathered import TopKState, quantization_perchannel_hook, quantization_pertensor_hook, topk_hook
from ddp.hooks.half import (
    allreduce_hook,
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
    noop_hook,
)
from ddp.hooks.post_local_sgd import PostLocalSGDState, post_localSGD_hook
from ddp.hooks.powersgd import PowerSGDState, batched_powerSGD_hook, powerSGD_hook

__all__ = [
    "GradBucket",
    "Hook",
    "PostLocalSGDState",
    "PowerSGDState",
    "TopKState",
    "allreduce_hook",
    "batched_powerSGD_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "check_hook",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
    "noop_hook",
    "post_localSGD_hook",
    "powerSGD_hook",
    "quantization_perchannel_hook",
    "quantization_pertensor_hook",
    "topk_hook",
]
