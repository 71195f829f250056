"""Two models train side by side on two thirds of the ranks while the last third simulates the data for both.

    ddprun -n 6 examples/own_communicator.py      # or mpirun -n 6 python examples/own_communicator.py

The program is one of MPI's: it starts MPI, splits the ranks by what they do, and hands each trainer its communicator.
Everything of `ddp` then counts the ranks of that communicator only. Simulators send batches with mpi4py.
"""

import numpy as np
from mpi4py import MPI

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from engine.optim import SGD

STEPS, BATCH = 60, 16
SLOPES = 2.0, -3.0  # what the two models are to find


def simulate(trainers: list[list[int]], own: int) -> None:
    """Feeds every trainer whose number, counted through, leaves the remainder `own`."""
    rng = np.random.default_rng(own)
    clients = [(rank, SLOPES[model]) for model, ranks in enumerate(trainers) for rank in ranks]
    simulators = MPI.COMM_WORLD.size - len(clients)
    for _ in range(STEPS):
        for number, (rank, slope) in enumerate(clients):
            if number % simulators == own:
                x = rng.standard_normal((BATCH, 1), dtype=np.float32)
                MPI.COMM_WORLD.Send(np.stack([x, slope * x]), rank)


def train(comm: MPI.Intracomm, model: int, simulator: int) -> float:
    """Returns the slope that was found; every rank of `comm` finds the same."""
    ddp.init_process_group(comm=comm)
    net = ddp.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    sgd = SGD(net.parameters(), lr=0.1)
    batch = np.empty((2, BATCH, 1), np.float32)
    for _ in range(STEPS):
        MPI.COMM_WORLD.Recv(batch, simulator)
        x, y = engine.from_numpy(batch.copy())
        sgd.zero_grad()
        F.mse_loss(net(x), y).backward()
        sgd.step()
    found = net.module.weight.item()
    if ddp.get_rank() == 0:
        print(
            f"model {model}, on {ddp.get_world_size()} ranks: slope {found:.3f}, expected {SLOPES[model]}", flush=True
        )
    ddp.destroy_process_group()
    return found


def main() -> None:
    """See the module."""
    world = MPI.COMM_WORLD
    if world.size < 3:
        raise SystemExit("it takes 3 ranks at least: ddprun -n 3 examples/own_communicator.py")
    third = world.size // 3
    trainers = [list(range(third)), list(range(third, world.size - third))]
    kind = next((model for model, ranks in enumerate(trainers) if world.rank in ranks), 2)
    comm = world.Split(kind, world.rank)
    if kind == 2:
        simulate(trainers, comm.rank)
        return
    simulators = range(trainers[1][-1] + 1, world.size)
    found = train(comm, kind, simulators[world.rank % len(simulators)])
    assert abs(found - SLOPES[kind]) < 1e-2


if __name__ == "__main__":
    main()
