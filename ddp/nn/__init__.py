"""Collectives that autograd sees, under the names of torch.distributed.nn."""

from ddp.nn.functional import all_gather as all_gather
from ddp.nn.functional import all_reduce as all_reduce
from ddp.nn.functional import all_to_all as all_to_all
from ddp.nn.functional import all_to_all_single as all_to_all_single
from ddp.nn.functional import broadcast as broadcast
from ddp.nn.functional import gather as gather
from ddp.nn.functional import reduce as reduce
from ddp.nn.functional import reduce_scatter as reduce_scatter
from ddp.nn.functional import scatter as scatter
