"""A job that is defined by its shards, whatever number of ranks carries it: read job, then sampling, streams, digest
and fingerprint. In which order shards are added up is known to `ddp.transport.order` alone.
"""

from ddp.job.digest import digest as digest
from ddp.job.job import Job as Job
from ddp.job.sampling import ShardSampler as ShardSampler
