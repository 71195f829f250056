"""The job that tests/campaigns/soak.py attacks: as many steps as it is told, each of which takes as long as it is told.

SOAK_FOLDER       where each rank notes its process, and the job its step
SOAK_STEPS, SOAK_SECONDS    how many, and how long each of them takes at least
"""

import json
import os
import time
from pathlib import Path

import ddp
import engine
from ddp import checkpoint
from engine import nn
from engine.data import DataLoader, TensorDataset


def main() -> None:
    folder, steps, seconds = Path(os.environ["SOAK_FOLDER"]), int(os.environ["SOAK_STEPS"]), os.environ["SOAK_SECONDS"]
    ddp.init_process_group()
    job = ddp.Job(12, seed=1)
    x = engine.randn(240, 12)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_sampler=ddp.ShardSampler(data, 24, job))
    module = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.1), nn.Linear(24, 1))
    net = ddp.DistributedDataParallel(module, bucket_cap_mb=0.001, job=job)
    optimizer = engine.optim.AdamW(net.parameters(), lr=0.01)

    def train_step() -> float:
        time.sleep(float(seconds))
        found = []
        for inputs, targets in job.shards(loader):
            loss = nn.functional.mse_loss(net(inputs), targets)
            loss.backward()
            found.append(loss.detach())
        mean = job.mean(found)
        optimizer.step()
        return mean

    saving = checkpoint.Manager(folder / "states", {"job": job, "net": net, "optimizer": optimizer}, every=100)
    saving.restore()  # of a storm that has crashed MPI
    losses = 0.0
    while job.step < steps:
        losses = job.run(train_step)
        (folder / f"rank-{ddp.get_rank()}").write_text(f"{os.getpid()} {job.step} {ddp.get_world_size()}")
        saving.step(job.step)
    saving.close()
    if ddp.get_rank() == 0:
        print(json.dumps({"digest": ddp.digest(net, optimizer), "loss": losses}), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
