"""The job that tests/campaigns/elastic.py attacks: thirty steps of two buckets, a loader, and checkpoints.

It counts from outside where its ranks talk or could die: calls of MPI, gradients that become ready, samples that are
fetched, optimizer steps and what follows them, syncs and renames of files. At one of these points a rank does to
itself what the environment says (see tests/campaigns/fault_job.py), and so does another one, where FAULT_RECOVERY is
RANK:POINT, at one of its points since the first recovery began, and where FAULT_REPLACEMENT is a point, at that the
first process that takes the place of a lost rank. The last line of rank 0 is its digest; it notes when a step has come
after the fault.
"""

import datetime
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ddp
import engine
from ddp import checkpoint, losses
from ddp.losses.communicator import Communicator
from engine import nn
from engine.data import DataLoader
from tests.campaigns.fault_job import CALLS, Points

STEPS = 30


class Samples:
    """Numbers that the place in the data set decides; fetching one is a point."""

    def __init__(self, point: Points) -> None:
        self._point = point

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> engine.Tensor:
        if index == 0:
            self._point("a sample")
        return engine.arange(12.0) * (index + 1) / 100


def count_recovery(point: Points, rank: int) -> None:
    """Puts points into the recovery: before ranks find together, and when they have."""
    victim, _, place = os.environ.get("FAULT_RECOVERY", "").partition(":")
    shrink: Callable[[], Any] = losses.shrink
    recoveries = 0

    def counted() -> Any:
        nonlocal recoveries
        if recoveries == 0 and victim == str(rank):
            point.strike_at(int(place))
        recoveries += 1
        point("shrink")
        return shrink()

    losses.shrink = counted
    os.eventfd = point.before("eventfd", os.eventfd)
    os.pidfd_open = point.before("pidfd_open", os.pidfd_open)


def points_of(folder: Path) -> Points:
    """Of this process."""
    rank = ddp.get_rank()
    if losses.outside() is None:
        return Points(folder, rank)
    point = Points(folder, -1)
    first = folder / "replacement"
    if os.environ.get("FAULT_REPLACEMENT") and not first.exists():
        first.touch()
        point.strike_at(int(os.environ["FAULT_REPLACEMENT"]))
    return point


def main() -> None:
    folder = Path(os.environ["FAULT_FOLDER"])
    limit = datetime.timedelta(seconds=float(os.environ["FAULT_TIMEOUT"]))
    ddp.init_process_group(host_timeout=limit, transport=os.environ["FAULT_TRANSPORT"])
    point = points_of(folder)
    for name in CALLS:
        setattr(Communicator, name, point.before(name, getattr(Communicator, name)))
    os.fsync = point.before("fsync", os.fsync)  # type: ignore[assignment]
    os.replace = point.before("replace", os.replace)  # type: ignore[assignment]

    count_recovery(point, ddp.get_rank())
    job = ddp.Job(12, seed=1)
    data = Samples(point)
    loader = DataLoader(data, batch_sampler=ddp.ShardSampler(data, 24, job))
    module = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 4))
    net = ddp.DistributedDataParallel(module, bucket_cap_mb=0.001, job=job)
    optimizer = engine.optim.AdamW(net.parameters(), lr=0.01)
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda gradient, name=name: point(f"gradient of {name}"))

    def train_step() -> float:
        found = []
        for inputs in job.shards(loader):
            loss = net(inputs).square().mean()
            loss.backward()
            found.append(loss.detach())
        mean = job.mean(found)
        point("before optimizer.step")
        optimizer.step()
        point("after optimizer.step")
        return mean

    saving = checkpoint.Manager(folder / "checkpoints", {"job": job, "net": net, "optimizer": optimizer}, every=10)
    mean = 0.0
    while job.step < STEPS:
        mean = job.run(train_step)
        if ddp.get_rank() == 0 and (folder / "struck").exists() and not (folder / "went on").exists():
            (folder / "went on").write_text(str(time.time() - (folder / "struck").stat().st_mtime))
        saving.step(job.step)
    saving.close()
    (folder / f"points-{os.environ['OMPI_COMM_WORLD_RANK']}").write_text("\n".join(point.names))
    if ddp.get_rank() == 0:
        print(json.dumps({"digest": ddp.digest(net, optimizer), "loss": mean}), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
