"""Jobs of models on a GPU: their shards are added up in host memory, and any number of ranks gives the same bits."""

import pytest

import ddp
import engine
import engine.nn as nn
import engine.nn.functional as F
from engine.optim import AdamW


def train(cuda: engine.device, group: ddp.ProcessGroup | None) -> str:
    """Three steps of five shards."""
    job = ddp.Job(shards=5, seed=1, process_group=group)
    model = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2), nn.Linear(20, 3)).to(cuda)
    net = ddp.DistributedDataParallel(model, job=job, process_group=group, bucket_cap_mb=0.0005)
    optimizer = AdamW(net.parameters(), lr=0.01)

    def body() -> None:
        for shard in job.shards():
            x = engine.randn(4, 6, device=cuda)
            y = engine.tensor([shard % 3, 0, 1, 2], device=cuda)
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    for _ in range(3):
        job.run(body)
    return ddp.digest(net, optimizer)


@pytest.mark.mpi(ranks=[2])
def test_two_ranks_train_to_the_bits_of_one(cuda: engine.device) -> None:
    ddp.init_process_group()
    try:
        alone = [ddp.new_group([rank]) for rank in (0, 1)][ddp.get_rank()]
        assert train(cuda, None) == train(cuda, alone)
    finally:
        ddp.destroy_process_group()
