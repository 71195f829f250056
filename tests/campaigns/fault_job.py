"""The job that tests/campaigns/faults.py attacks: four training steps, and a checkpoint after every second one.

It counts from outside where its ranks talk or write: calls of mpi4py's communicators and windows (by subclasses of
them), gradients that become ready in backward, optimizer steps, and syncs and renames of files. At one of these points
one rank does to itself what the environment says.

    FAULT_FOLDER      where checkpoints and records go
    FAULT_TRANSPORT   shared, mpi or hierarchical (then two ranks are a host)
    FAULT_VICTIM, FAULT_POINT, FAULT_KIND    who (one rank, or several: 0,2), at which of its points (counted from 0),
                                             what; without: nobody
    FAULT_TIMEOUT     seconds, of the process group
"""

import ctypes
import datetime
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

from tests.campaigns.digest import digest

CALLS = (
    *("barrier", "bcast", "gather", "allgather", "alltoall", "scatter", "reduce", "allreduce", "scan"),
    *("Barrier", "Bcast", "Gather", "Gatherv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Scatter"),
    *("Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan"),
    *("Ibarrier", "Ibcast", "Igather", "Iallgather", "Iallgatherv", "Ialltoall", "Ialltoallv", "Ireduce"),
    *("Iallreduce", "Ireduce_scatter", "Ireduce_scatter_block"),
    *("send", "recv", "isend", "irecv", "sendrecv", "Send", "Recv", "Isend", "Irecv", "Sendrecv", "Issend"),
    *("Dup", "Split", "Split_type", "Create", "Create_group", "Free"),
)
_WINDOW_CALLS = ("Allocate", "Allocate_shared", "Create", "Free")


class CampaignError(Exception):
    """What the victim raises."""


class Points:
    """Counts where this rank is, and strikes at one of these places."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.names: list[str] = []
        self._folder = folder
        self._rank = rank
        victims = os.environ.get("FAULT_VICTIM", "").split(",")
        self._strike = int(os.environ["FAULT_POINT"]) if str(rank) in victims else None
        self._lock = threading.Lock()

    def strike_at(self, place: int) -> None:
        """This rank is a victim, too, at this place of those that are to come."""
        self._strike = len(self.names) + place

    def __call__(self, name: str) -> None:
        with self._lock:
            number = len(self.names)
            self.names.append(name)
        if number == self._strike:
            (self._folder / "job").write_text(os.environ["DDPRUN_JOB"])
            with (self._folder / "struck").open("a") as record:
                record.write(f"{name}\n")
            _FAULTS[os.environ["FAULT_KIND"]]()

    def before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with a point before it."""

        @functools.wraps(call, assigned=("__name__", "__doc__"))
        def counted(*arguments: Any, **keywords: Any) -> Any:
            self(name)
            return call(*arguments, **keywords)

        return counted


def _raise(error: BaseException) -> None:
    raise error


_FAULTS: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda: _raise(CampaignError("struck")),
    "MemoryError": lambda: _raise(MemoryError("struck")),
    "os._exit": lambda: os._exit(0),
    "sys.exit": lambda: sys.exit(3),
    "segfault": lambda: ctypes.string_at(0),
}


def count_calls(point: Points) -> None:
    """Puts subclasses that count in the place of mpi4py's world communicator and windows, and counts file calls."""
    talking = {name: point.before(name, getattr(MPI.Intracomm, name)) for name in CALLS}
    comm = type("CountedIntracomm", (MPI.Intracomm,), talking)
    MPI.COMM_WORLD = comm(MPI.COMM_WORLD)
    windows = {}
    for name in _WINDOW_CALLS:
        call = point.before(f"Win.{name}", getattr(MPI.Win, name))
        windows[name] = call if name == "Free" else staticmethod(call)
    MPI.Win = type("CountedWin", (MPI.Win,), windows)
    os.fsync = point.before("fsync", os.fsync)  # type: ignore[assignment]
    os.replace = point.before("replace", os.replace)  # type: ignore[assignment]


def train(point: Points, folder: Path) -> None:
    """The job."""
    import ddp
    import engine
    from ddp.transport import TRANSPORTS
    from ddp.transport.hierarchical import HierarchicalTransport
    from engine import nn

    transport = os.environ["FAULT_TRANSPORT"]
    TRANSPORTS["hierarchical"] = lambda comm: HierarchicalTransport(comm, comm.rank // 2)
    timeout = datetime.timedelta(seconds=float(os.environ["FAULT_TIMEOUT"]))
    ddp.init_process_group(timeout=timeout, transport=transport)
    point("initialized")
    engine.manual_seed(1)
    module = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
    net = ddp.DistributedDataParallel(module, bucket_cap_mb=0.004)
    optimizer = engine.optim.AdamW(net.parameters(), lr=0.01)
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda gradient, name=name: point(f"gradient of {name}"))
    rank = ddp.get_rank()
    for step in range(1, 5):
        generator = engine.Generator().manual_seed(100 * step + rank)
        inputs = engine.randn(8, 32, generator=generator)
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        point("optimizer.step")
        optimizer.step()
        if step % 2 == 0 and rank == 0:
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
            with (folder / "digests").open("a") as record:
                record.write(json.dumps([step, digest(state)]) + "\n")
            engine.save({"step": step, **state}, folder / "checkpoint.pt")
    ddp.destroy_process_group()
    point("destroyed")


def main() -> None:
    folder = Path(os.environ["FAULT_FOLDER"])
    rank = MPI.COMM_WORLD.rank
    point = Points(folder, rank)
    count_calls(point)
    train(point, folder)
    (folder / f"points-{rank}").write_text("\n".join(point.names))


if __name__ == "__main__":
    main()
