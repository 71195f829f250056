"""The backend "allstride" of torch.distributed: PyTorch's own DistributedDataParallel over the transports of ddp.

    import ddp.torch_backend
    torch.distributed.init_process_group("allstride")

The tensors stay PyTorch's, in host memory; the ranks are those of MPI, so `mpirun` or `ddprun` starts the script. The
collectives are those of `ddp.collectives` on the same memory, with their checks, time-outs and hang verdicts.

Importing this enters the world of ranks, which is collective, so that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT are set before the script asks for them. PyTorch is imported here and nowhere else in this package.
"""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

from ddp.execution.calls import NOT_THE_USERS
from ddp.groups import init_process_group, is_initialized
from ddp.torch_backend.rendezvous import set_address
from ddp.torch_backend.torch_group import NAME, create

__all__ = ["NAME"]

NOT_THE_USERS.append(os.path.join(os.path.dirname(torch.__file__), ""))

# A DataLoader's worker that was not forked imports the script anew, by that name: it is no rank.
if sys.modules["__mp_main__"].__name__ == "__main__" and multiprocessing.parent_process() is None:
    if not is_initialized():
        init_process_group()
    set_address(os.environ)

if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
