"""`ddp.torch_backend`: PyTorch's own collectives and training over ddp. Each in a job of its own, where PyTorch is."""

import importlib.util

import pytest

from tests.mpi_job import run_job

pytestmark = [
    pytest.mark.full,  # PyTorch takes seconds to import
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

HEAD = """
import copy, datetime, os
import ddp.torch_backend
import torch
import torch.distributed as dist
dist.init_process_group("allstride", timeout=datetime.timedelta(seconds=30))
rank, size = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "allstride" and int(os.environ["RANK"]) == rank and int(os.environ["WORLD_SIZE"]) == size
total = sum(range(1, size + 1))
"""
TAIL = """
dist.destroy_process_group()
print("done")
"""


def run(code: str, ranks: int) -> None:
    ended = run_job(HEAD + code + TAIL, ranks, timeout=120.0, environment={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == ranks, ended.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives(ranks: int) -> None:
    run(
        """
for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
    mine = torch.full((5, 3), rank + 1, dtype=kind)
    dist.all_reduce(mine)
    assert mine.dtype == kind and mine.eq(total).all()
    work = dist.all_reduce(mine.fill_(rank), op=dist.ReduceOp.MAX, async_op=True)
    assert work.wait() and work.is_completed() and work.is_success() and mine.eq(size - 1).all()
truth = torch.tensor([rank == 0, True, False])
dist.all_reduce(truth, op=dist.ReduceOp.BAND)
assert truth.tolist() == [size == 1, True, False]
mean = torch.full((3,), float(rank))
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
assert mean.eq((size - 1) / 2).all()
large = torch.full((300_000,), rank + 1.0)
works = [dist.all_reduce(large, async_op=True), dist.all_reduce(mean.fill_(1.0), async_op=True)]
for work in reversed(works):
    work.wait()
assert large.eq(total).all() and mean.eq(size).all()
across = torch.full((3, 4), float(rank)).t()
dist.broadcast(across, src=size - 1)
assert across.eq(size - 1).all()
parts = [torch.empty(2) for _ in range(size)]
dist.all_gather(parts, torch.full((2,), float(rank)))
assert [part[0].item() for part in parts] == list(range(size))
whole = torch.empty(2 * size)
dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
assert whole.view(size, 2)[:, 0].tolist() == list(range(size))
out = torch.empty(2)
dist.reduce_scatter_tensor(out, torch.arange(2.0 * size))
assert out.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
dist.reduce_scatter(out, [torch.full((2,), float(part)) for part in range(size)])
assert out.eq(size * rank).all()
swapped = torch.empty(size)
dist.all_to_all_single(swapped, torch.arange(float(size)) + 10 * rank)
assert swapped.tolist() == [10.0 * source + rank for source in range(size)]
lists = [torch.empty(1) for _ in range(size)]
dist.all_to_all(lists, [torch.tensor([10.0 * rank + to]) for to in range(size)])
assert torch.cat(lists).eq(swapped).all()
dist.gather(out, parts if rank == 0 else None, dst=0)
dist.scatter(out, [torch.full((2,), 7.0 + to) for to in range(size)] if rank == 0 else None, src=0)
assert out.eq(7 + rank).all()
root = torch.ones(3)
dist.reduce(root, dst=size - 1)
assert root.eq(size if rank == size - 1 else 1).all()
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert [each["rank"] for each in objects] == list(range(size))
dist.barrier()
future = dist.group.WORLD.allreduce([torch.ones(2)]).get_future().then(lambda done: done.value()[0] * 2)
assert future.wait().eq(2 * size).all()
both = [torch.ones(2), torch.full((3,), 2.0)]
dist.group.WORLD.allreduce_coalesced(both).wait()
assert both[0].eq(size).all() and both[1].eq(2 * size).all()
group = dist.new_group([0])
if rank == 0:
    alone = torch.ones(2)
    dist.all_reduce(alone, group=group)
    assert alone.eq(1).all()
""",
        ranks,
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_messages(ranks: int) -> None:
    run(
        """
if rank == 0:
    works = [dist.isend(torch.full((3,), float(to)), to) for to in range(1, size)]
    seen = set()
    for _ in range(1, size):
        found = torch.empty(2)
        source = dist.recv(found)
        assert found.eq(source).all()
        seen.add(source)
    assert seen == set(range(1, size))
    for work in works:
        work.wait()
else:
    mine = torch.empty(3)
    assert dist.recv(mine, src=0) == 0 and mine.eq(rank).all()
    dist.send(torch.full((2,), float(rank)), dst=0)
""",
        ranks,
    )


def test_training() -> None:
    """DDP, FSDP on the CPU, ZeroRedundancyOptimizer and Join give the gradients of one process."""
    run(
        """
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
inputs = torch.randn(2 * size, 8)
plain, full, sharded = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model)
plain(inputs).mean().backward()
own = inputs[2 * rank : 2 * rank + 2]
wrapped = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.0001)
for _ in range(2):
    wrapped.zero_grad()
    wrapped(own).mean().backward()
for mine, expected in zip(wrapped.parameters(), plain.parameters()):
    torch.testing.assert_close(mine.grad, expected.grad)
optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.1)
optimizer.step()
torch.optim.Adam(plain.parameters(), lr=0.1).step()
for mine, expected in zip(wrapped.parameters(), plain.parameters()):
    torch.testing.assert_close(mine, expected)
optimizer.consolidate_state_dict()
with Join([wrapped]):
    for _ in range(2 + rank):
        wrapped(own).mean().backward()
one = FullyShardedDataParallel(full, device_id=torch.device("cpu"))
assert one(own).allclose(model(own))
one(own).mean().backward()
fully_shard(sharded, mesh=dist.init_device_mesh("cpu", (size,)))
sharded(own).mean().backward()
model(inputs).mean().backward()
for mine, expected in zip(sharded.parameters(), model.parameters()):
    torch.testing.assert_close(mine.grad.full_tensor(), expected.grad)
""",
        2,
    )


def test_a_callback_may_wait_for_another_sum() -> None:
    """In a hook, as PowerSGD's, and of a work that Python waits for."""
    run(
        """
from torch.nn.parallel import DistributedDataParallel
def again(done):
    (mine,) = done.value()
    return dist.all_reduce(mine.mul_(0.5), async_op=True).get_future().wait()[0]
def hook(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model.register_comm_hook(None, hook)
for _ in range(20):
    model.zero_grad()
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    assert model.module.weight.grad.item() == total * 0.5 * size
for _ in range(20):
    work = dist.all_reduce(torch.ones(2), async_op=True)
    after = work.get_future().then(again)
    work.wait()
    assert after.wait().eq(size * 0.5 * size).all()
""",
        2,
    )


def test_calls_that_do_not_fit_together_are_named() -> None:
    run(
        """
try:
    dist.all_reduce(torch.ones(2 + rank))
except ValueError as error:
    assert "tensors differ between ranks" in str(error) and "program.py" in str(error)
else:
    raise AssertionError("nobody noticed")
try:
    dist.all_reduce(torch.eye(2).to_sparse())
except TypeError as error:
    assert "dense tensor" in str(error)
try:
    dist.new_group([0, 1], pg_options=object())
except ValueError as error:
    assert "pg_options" in str(error)
""",
        2,
    )


def test_a_rank_that_does_not_come_is_named() -> None:
    ended = run_job(
        HEAD.replace("seconds=30", "seconds=3")
        + "import time\nif rank == 0:\n    dist.all_reduce(torch.ones(2))\nelse:\n    time.sleep(60)\n",
        2,
        timeout=60.0,
    )
    assert ended.returncode != 0
    assert "all_reduce" in ended.stderr
    assert "rank 1" in ended.stderr


def test_workers_that_import_the_script_anew_are_no_ranks() -> None:
    ended = run_job(
        """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import ddp.torch_backend
if __name__ == "__main__":
    dist.init_process_group("allstride")
    data = TensorDataset(torch.arange(12.0))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 2, sampler=sampler, num_workers=1, multiprocessing_context="spawn")
    count = torch.tensor(float(len(list(loader))))
    dist.all_reduce(count)
    print("batches", count.item())
""",
        2,
        runner=(),
        timeout=120.0,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("batches 6.0") == 2
