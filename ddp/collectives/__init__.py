"""Collectives and messages on tensors and objects, in torch.distributed's names."""

from ddp.collectives.attendance import monitored_barrier
from ddp.collectives.coalesced import all_gather_coalesced, all_reduce_coalesced
from ddp.collectives.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from ddp.collectives.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send
from ddp.collectives.redistribution import (
    all_gather,
    all_gather_into_tensor,
    all_to_all,
    all_to_all_single,
    gather,
    scatter,
)
from ddp.collectives.reductions import ReduceOp
from ddp.collectives.sums import all_reduce, barrier, broadcast, reduce, reduce_scatter, reduce_scatter_tensor

__all__ = [
    "P2POp",
    "ReduceOp",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
]
