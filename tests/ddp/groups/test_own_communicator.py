"""`init_process_group(comm=...)`: a world of some of MPI's ranks, with MPI started by whoever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi_job import python_path, run_job

EXAMPLE = Path(__file__).parents[3] / "examples/own_communicator.py"

EVERY_SECOND = """
from mpi4py import MPI

import ddp
import engine

world = MPI.COMM_WORLD
comm = world.Split(world.rank % 2, -world.rank)
ddp.init_process_group(comm=comm)
assert (ddp.get_rank(), ddp.get_world_size()) == (comm.rank, comm.size)
tensor = engine.tensor([float(world.rank)])
ddp.all_reduce(tensor)
assert tensor.item() == sum(rank for rank in range(world.size) if rank % 2 == world.rank % 2)
net = ddp.DistributedDataParallel(engine.nn.Linear(1, 1, bias=False))
net(engine.tensor([[float(comm.rank)]])).sum().backward()
assert net.module.weight.grad.item() == (comm.size - 1) / 2
ddp.barrier()
ddp.destroy_process_group()
assert comm.allreduce(1) == comm.size  # it is still the user's
ddp.init_process_group()
assert ddp.get_world_size() == world.size
print("done", flush=True)
"""


@pytest.mark.full
def test_two_worlds_side_by_side_in_an_mpi_that_is_running_then_one() -> None:
    """Open MPI was started without the words that keep its UCX quiet; nothing is printed all the same."""
    result = run_job(EVERY_SECOND, 3, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n" * 3, "")


@pytest.mark.full
def test_two_models_train_while_others_simulate() -> None:
    result = run_job(EXAMPLE.read_text(), 3, timeout=200)
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == [
        "model 0, on 1 ranks: slope 2.000, expected 2.0",
        "model 1, on 1 ranks: slope -3.000, expected -3.0",
    ]


def test_what_is_no_communicator_of_this_process() -> None:
    program = """
import ddp
from mpi4py import MPI

for comm in (MPI.COMM_NULL, MPI.GROUP_EMPTY):
    try:
        ddp.init_process_group(comm=comm)
    except (TypeError, ValueError) as error:
        print(error)
assert not ddp.is_initialized()
"""
    # The program itself starts MPI. Open MPI's UCX prints into its output where there is no /sys.
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMPI_MCA_pml": "^ucx"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    null, no_comm = done.stdout.splitlines()
    assert "comm is MPI.COMM_NULL, since this process is not in it" in null
    assert "expected comm as an MPI.Intracomm, got Group" in no_comm
