"""No wait out of sight: whatever the package waits for in MPI is declared, so that the watchdog sees it."""

import pytest

from tests.mpi_job import run_job

PROGRAM = """
import sys, tempfile, threading
from tests.ddp import mpi_spy
mpi_spy.install()
import ddp, engine, engine.nn as nn
from ddp import progress
from ddp.hooks import PowerSGDState, fp16_compress_hook, powerSGD_hook, topk_hook, TopKState
from engine.optim import SGD

transport, folder = sys.argv[1:]
ddp.init_process_group(transport=transport)
rank, size = ddp.get_rank(), ddp.get_world_size()

def train(net, steps=3):
    optimizer = SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(engine.ones(4, 4)).sum().backward()
        optimizer.step()
    return optimizer

def layers():
    return nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

net = ddp.DistributedDataParallel(layers(), bucket_cap_mb=1e-5)
train(net)
assert net.reducer.rebuilt
for state, hook in ((None, fp16_compress_hook), (PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook),
                    (TopKState(None, 0.5), topk_hook)):
    hooked = ddp.DistributedDataParallel(nn.Sequential(nn.Linear(4, 40), nn.Linear(40, 2)))
    hooked.register_comm_hook(state, hook)
    train(hooked, 4)
plain = ddp.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
with plain.join():
    for _ in range(2 + rank):
        plain(engine.ones(4, 4)).sum().backward()
for batch in ddp.uneven([engine.ones(4, 4)] * (2 + rank), plain):
    plain(batch).sum().backward()
with ddp.timeline(net):
    train(net)
divided = ddp.ZeroRedundancyOptimizer(net.parameters(), SGD, lr=0.1)
net(engine.ones(4, 4)).sum().backward()
divided.step()
divided.consolidate_state_dict()
if rank == 0:
    engine.save([net.state_dict(), divided.state_dict()], folder + "/checkpoint.pt")
ddp.barrier()
engine.load(folder + "/checkpoint.pt", weights_only=False)
ddp.verify_replicas(net)

group = ddp.new_group([0, 1])
for here in (None, group):
    tensor = engine.ones(4)
    works = [ddp.all_reduce(tensor, group=here, async_op=True), ddp.barrier(here, async_op=True)]
    for work in works:
        work.wait()
    ddp.broadcast(tensor, 0, here)
    ddp.reduce(tensor, 0, group=here)
    ddp.all_gather([engine.ones(4) for _ in range(size)], tensor, here)
    ddp.all_to_all_single(engine.ones(size), engine.ones(size), group=here)
    ddp.reduce_scatter(engine.ones(4), [tensor] * size, group=here)
    ddp.all_gather_object([None] * size, rank, here)
    ddp.gather_object(rank, [None] * size if rank == 0 else None, 0, here)
    ddp.broadcast_object_list([rank], 0, here)
    ddp.scatter_object_list([None], [0] * size, 0, here)
    ddp.monitored_barrier(here)
other = 1 - rank
works = [ddp.isend(engine.ones(2), other), ddp.irecv(engine.ones(2), other)]
for work in works:
    work.wait()
try:
    ddp.all_reduce(tensor) if rank else ddp.barrier()
except RuntimeError:
    pass
group.transport
ddp.destroy_process_group(group)
ddp.destroy_process_group()
ddp.init_process_group(transport=transport)
ddp.DistributedDataParallel(nn.Linear(2, 2))
if rank == 0:
    print("undeclared:", sorted(set(mpi_spy.undeclared)))
    print("seen:", " ".join(sorted(mpi_spy.calls)))
"""

# Each of them is made somewhere on the way through the program, or the test would say nothing about it.
SEEN = {
    "mpi": "Intracomm.Dup Intracomm.Split_type Intracomm.allgather Intracomm.allreduce Intracomm.Create_group "
    "Intracomm.Allreduce Intracomm.Barrier Request.Waitany Request.Wait Intracomm.Allgather pkl5.allgather",
    "shared": "Intracomm.Dup Intracomm.bcast Intracomm.allgather",
    "hierarchical": "Intracomm.Split Intracomm.Dup Intracomm.bcast",
}


@pytest.mark.parametrize(
    "transport", ["shared", *(pytest.param(name, marks=pytest.mark.full) for name in ("mpi", "hierarchical"))]
)
def test_every_call_that_waits_is_declared(transport: str, tmp_path) -> None:
    result = run_job(PROGRAM, 2, timeout=120, args=[transport, str(tmp_path)], runner=())
    assert result.returncode == 0, result.stderr
    undeclared, seen = (line for line in result.stdout.splitlines() if line.startswith(("undeclared:", "seen:")))
    assert undeclared == "undeclared: []"
    assert set(SEEN[transport].split()) <= set(seen.split())
