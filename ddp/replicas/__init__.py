"""The model on every rank: what of it is replicated, whether the ranks agree on it, copying it from one to all."""

from ddp.replicas.agreement import Replica, check_replicas
from ddp.replicas.contents import Contents
from ddp.replicas.copying import copy_from, copy_shares

__all__ = [
    "Contents",
    "Replica",
    "check_replicas",
    "copy_from",
    "copy_shares",
]
