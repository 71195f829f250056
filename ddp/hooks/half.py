"""The plain mean as a hook, nothing as a hook, and gradients that travel in half precision.

Source: default_hooks.py of torch.distributed.algorithms.ddp_comm_hooks. The sum of the compressed gradients is made in
float32 and rounded once.
"""

from typing import Any

import engine
from ddp.execution.futures import Future
from ddp.gradients.grad_bucket import GradBucket, Hook
from ddp.groups.process_group import ProcessGroup


def allreduce_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks: the same numbers as without a hook."""
    return bucket.average()


def noop_hook(state: Any, bucket: GradBucket) -> Future[engine.Tensor]:
    """Nothing is reduced: gradients stay local. For measuring what communication costs."""
    return Future(bucket.buffer)


def fp16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients rounded to float16; what is larger than 65504 becomes infinite."""
    return bucket.average(engine.float16)


def bf16_compress_hook(process_group: ProcessGroup | None, bucket: GradBucket) -> Future[engine.Tensor]:
    """The mean over the ranks of gradients rounded to bfloat16."""
    return bucket.average(engine.bfloat16)


def fp16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, given float16 gradients; its result is cast back."""
    return _compress_wrapper(hook, engine.float16)


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """`hook`, given bfloat16 gradients; its result is cast back."""
    return _compress_wrapper(hook, engine.bfloat16)


def _compress_wrapper(hook: Hook, dtype: engine.dtype) -> Hook:
    def compressed(state: Any, bucket: GradBucket) -> Future[engine.Tensor]:
        full = bucket.buffer()
        bucket.set_buffer(full.to(dtype))

        def decompress(future: Future[engine.Tensor]) -> engine.Tensor:
            full.copy_(future.value())
            return full

        return hook(state, bucket).then(decompress)

    return compressed
