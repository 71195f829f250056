"""No wait out of sight: whatever the package waits for in MPI is declared, so that the watchdog sees it."""

import ast
import json
from pathlib import Path
from typing import NamedTuple

import pytest

import ddp
from tests.mpi_job import run_job

# Of the program that stands there as argument, or module: what rank 0 saw.
SPY = """
import json, runpy, sys
from tests.ddp import mpi_spy
mpi_spy.install()
from mpi4py import MPI
try:
    if sys.argv[1].endswith(".py"):
        runpy.run_path(sys.argv[1], run_name="__main__")
    else:
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit:
    pass
everyones = MPI.Intracomm.gather(MPI.COMM_WORLD, (sorted(mpi_spy.places), sorted(set(mpi_spy.undeclared))))
if MPI.COMM_WORLD.Get_rank() == 0:
    places, undeclared = zip(*everyones)
    print("seen", json.dumps([sum(places, []), sum(undeclared, []), sorted(mpi_spy.calls)]))
"""

PROGRAM = """
import sys, tempfile, threading
import ddp, engine, engine.nn as nn
from ddp import checkpoint
from ddp.watching import progress
from ddp.hooks import PowerSGDState, fp16_compress_hook, powerSGD_hook, topk_hook, TopKState
from engine.optim import SGD

transport, folder = sys.argv[2:]
if transport == "groups":
    from ddp.transport import mpi
    mpi.count_groups, transport = lambda ranks: ranks, "mpi"
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
for batch in ddp.uneven([engine.ones(4, 4)] * (2 * rank), plain):
    plain(batch).sum().backward()
with checkpoint.Manager(folder + "/run", {"model": net}, every=1) as manager:
    for step in range(manager.restore(), 2):
        manager.step(step + 1)

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
"""

TRAINING = """
import ddp, engine, engine.nn as nn
from engine.optim import SGD
ddp.init_process_group()
net = ddp.DistributedDataParallel(nn.Linear(4, 4))
optimizer = SGD(net.parameters(), lr=0.1)
for _ in range(60):
    net(engine.ones(4, 4)).sum().backward()
    optimizer.step()
ddp.destroy_process_group()
"""

# Each of them is made somewhere on the way through the program, or the test would say nothing about it.
SEEN = {
    "mpi": "Intracomm.Dup Intracomm.Split_type Intracomm.allgather Intracomm.Create_group "
    "Intracomm.Allreduce Intracomm.Barrier Request.Waitany Request.Wait Intracomm.Allgather pkl5.allgather",
    "groups": "Intracomm.Dup Intracomm.Split Request.Waitany",
    "shared": "Intracomm.Dup Intracomm.bcast Intracomm.allgather",
    "hierarchical": "Intracomm.Split Intracomm.Dup Intracomm.bcast",
}


# What waits for other ranks, by names that nothing else has. What is looked at until it is there waits nowhere.
WAITING = {
    *("Dup", "Split", "Split_type", "Create_group", "Barrier", "Bcast", "Allgather", "Allreduce", "Gather", "Alltoall"),
    *("allgather", "allreduce", "bcast", "alltoall", "Waitany", "Waitall", "Wait", "Send", "Recv", "Probe"),
    *("Allocate", "Lock_all", "Unlock_all", "Flush"),
}
OBJECTS = {"gather", "scatter", "allgather", "bcast"}  # of what `ProcessGroup.objects` gives

ELSEWHERE = {
    "testing/": "ranks that are threads",
    "job/recovery.py": "only in an elastic job, after a loss: a survivor that waits in vain is the next loss",
    "losses/": "only in an elastic job",
    "transport/cuda/": "only with a GPU, in `ProcessGroup.transport_on`, `device_room` and the waits for buckets",
    "bench/cuda.py": "only with a GPU",
    "world/torchrun_variables.py": "only between hosts, in `init_process_group`",
    "world/bootstrap.py: self.comm.allgather": "only tests call it",
    "watching/board.py": "only between hosts, in `init_process_group` and at the end of the job",
    "transport/fence.py": "a window of one rank",
    "transport/hierarchical.py: inside.allgather(comm.rank)": "the making of a transport among hosts of unlike size",
    "transport/announcing.py: group.Dup()": "the making of a transport of more than two ranks",
    "torch_backend/": "only with PyTorch; it waits in our collectives",
    "checkpoint/loading.py": "only where ranks do not see the same files",
    "checkpoint/saving.py: comm.bcast": "only where hosts have folders of their own",
}
"""Places that wait and are not seen here, by how they begin, and why."""


class Seen(NamedTuple):
    """What a job did: where it waited, what of that it did not declare, by which calls."""

    places: set[tuple[str, int]]
    undeclared: list[str]
    calls: set[str]


def watched(folder: Path, *arguments: str) -> Seen:
    """Runs a program on two ranks; "PROGRAM" is ours."""
    program = folder / "watched.py"
    program.write_text(PROGRAM)
    words = [str(program) if word == "PROGRAM" else word for word in arguments]
    result = run_job(SPY, 2, timeout=120, args=words, runner=())
    assert result.returncode == 0, result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("seen "))
    places, undeclared, calls = json.loads(line.removeprefix("seen "))
    return Seen({(file, number) for file, number in places}, undeclared, set(calls))


def written() -> dict[str, set[tuple[str, int]]]:
    """Every place of the package that waits for other ranks in MPI: its file and words, and the lines it goes over."""
    found = {}
    here = Path(ddp.__file__).parent
    for path in here.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = node.func.value
                is_objects = (
                    isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute) and of.func.attr == "objects"
                )
                if node.func.attr in (OBJECTS if is_objects else WAITING):
                    file = str(path.relative_to(here))
                    lines = {(file, line) for line in range(node.lineno, node.end_lineno + 1)}
                    found.setdefault(f"{file}: {ast.unparse(node)}", set()).update(lines)
    return found


@pytest.mark.full
def test_every_call_that_waits_is_declared(tmp_path: Path) -> None:
    seen = watched(tmp_path, "PROGRAM", "shared", str(tmp_path))
    assert seen.undeclared == []
    assert set(SEEN["shared"].split()) <= seen.calls


@pytest.mark.full
def test_every_place_that_waits_is_seen_and_declared(tmp_path: Path) -> None:
    """Over every transport, and what users run as commands: of a place that nobody has seen nothing is known."""
    kinds = ("shared", "mpi", "groups", "hierarchical")
    seen = {name: watched(tmp_path, "PROGRAM", name, str(tmp_path)) for name in kinds}
    seen["doctor"] = watched(tmp_path, "ddp.doctor")
    seen["bench"] = watched(tmp_path, "ddp.bench", "--max-bytes", "2K")
    (tmp_path / "train.py").write_text(TRAINING)
    seen["forecast"] = watched(tmp_path, "ddp.forecast", f"{tmp_path}/train.py", "--nodes=2", "--link=1gbit,9us")
    assert {name: one.undeclared for name, one in seen.items() if one.undeclared} == {}
    for name, calls in SEEN.items():
        assert set(calls.split()) <= seen[name].calls
    reached = set().union(*(one.places for one in seen.values()))
    places = {text: lines for text, lines in written().items() if not text.startswith(tuple(ELSEWHERE))}
    assert [text for text, lines in places.items() if not lines & reached] == []


def test_no_call_holds_the_interpreter_while_it_waits() -> None:
    """A communicator's first reduction of Python objects duplicates it in mpi4py with the interpreter's lock held: the
    watchdog's thread stands still as long as a rank does not come. Gathering does not.
    """
    here = Path(ddp.__file__).parent
    reductions = {
        f"{path.relative_to(here)}:{call.lineno}"
        for path in here.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Attribute) and call.attr in ("allreduce", "scan", "exscan")
        if ast.unparse(call.value) != "self"  # PyTorch's name, in its ProcessGroup
    }
    assert reductions == set()
