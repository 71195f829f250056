"""A gradient's way from backward to `.grad`.

Read in this order: reference (the oracle), plan, bucket, buckets, listening, reducer; then failing and of_shards.
"""

from ddp.gradients.bucket import Bucket
from ddp.gradients.grad_bucket import GradBucket, Hook, check_hook
from ddp.gradients.plan import BucketLayout, compute_bucket_assignment, plan_buckets
from ddp.gradients.reducer import Reducer
from ddp.gradients.reference import average_gradients
from ddp.gradients.stage import Stage

__all__ = [
    "Bucket",
    "BucketLayout",
    "GradBucket",
    "Hook",
    "Reducer",
    "Stage",
    "average_gradients",
    "check_hook",
    "compute_bucket_assignment",
    "plan_buckets",
]
