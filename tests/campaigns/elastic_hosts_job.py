"""The job of `tests.campaigns.elastic_hosts`: gradients of 4 MB, and victims that strike themselves, as "strike.json"
says: (rank, seconds after the first steps) of each, and by which signal; 0: native code ends it with an exit code.
"""

import ctypes
import datetime
import json
import os
import signal
import threading
import time
from pathlib import Path

import ddp
import engine
import engine.nn.functional as F
from ddp import DistributedDataParallel
from engine import nn
from engine.data import DataLoader, TensorDataset
from engine.optim import SGD

STEPS, BEFORE, WIDTH = 30, 5, 700


def strike(after: float, number: int) -> None:
    """Ends this process, or stops it."""
    time.sleep(after)
    Path("struck").write_text(str(time.time()))
    if number:
        os.kill(os.getpid(), signal.Signals(number))
    else:
        ctypes.CDLL(None)._exit(3)


def main() -> None:
    """All of it; rank 0 prints a line at the end, and each rank one after a recovery."""
    plan = json.loads(Path("strike.json").read_text())
    ddp.init_process_group(host_timeout=datetime.timedelta(seconds=4))
    rank = str(ddp.get_rank())
    job = ddp.Job(shards=8, seed=0)
    inputs = engine.randn(160, 64)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_sampler=ddp.ShardSampler(data, 16, job))
    layers = nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    net = DistributedDataParallel(nn.Sequential(*layers), job=job)
    optimizer = SGD(net.parameters(), lr=1e-3)

    def train_step() -> None:
        for some, targets in job.shards(loader):
            F.mse_loss(net(some), targets).backward()
        optimizer.step()

    size = ddp.get_world_size()
    while job.step < STEPS:
        if job.step == BEFORE and rank in plan["victims"]:
            threading.Thread(target=strike, args=(plan["victims"][rank], plan["signal"]), daemon=True).start()
        job.run(train_step)
        if ddp.get_world_size() != size:
            size = ddp.get_world_size()
            print(json.dumps({"recovered": time.time()}), flush=True)
    if ddp.get_rank() == 0:
        print(json.dumps({"digest": ddp.digest(net, optimizer), "ranks": size}), flush=True)
    ddp.destroy_process_group()


if __name__ == "__main__":
    main()
